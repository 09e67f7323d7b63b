//! The arguments and help text of `cache`.

use bytesize::ByteSize;
use clap::{ArgGroup, Args, Subcommand};
use jiff::{Span, Timestamp, tz::TimeZone};
use std::time::SystemTime;

const CACHE_HELP: &str = "\
Examples:
  weightfs cache list                                    what is cached, the last used first
  weightfs cache prune --size 50GB                       keep 50 GB of what was used last
  weightfs cache prune --older-than 30d --dry-run        what was not used for 30 days
  weightfs cache clear                                   remove all that is not in use
  weightfs cache list --json | jq -r '.files[] | select(.cached == .size) | .name'

The cache is $XDG_CACHE_HOME/weightfs, or ~/.cache/weightfs. It has the blocks of remote files that
were read, and what each location led to, for --offline. Files that a mount or a command uses are
kept. All else can be removed at any time: it is fetched again when it is read.

Exit status: 0 success, 1 failure, 2 usage error.";

/// The arguments of `cache`.
#[derive(Args, Debug, PartialEq)]
#[command(after_help = CACHE_HELP, arg_required_else_help = false)]
pub struct CacheArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub action: CacheAction,
}

/// A subcommand of `cache`.
#[derive(Subcommand, Debug, PartialEq)]
pub enum CacheAction {
    /// List the cached files, the last used first
    List {
        /// Print a JSON object, with exact numbers
        #[arg(long)]
        json: bool,
    },
    /// Remove what was not used for the longest time
    #[command(group = ArgGroup::new("wanted").args(["size", "older_than"]).required(true).multiple(true))]
    Prune {
        /// Leave at most SIZE, such as 50GB; of the last file, blocks at its end are removed
        #[arg(long, value_name = "SIZE")]
        size: Option<ByteSize>,
        /// Remove files that were not used for AGE, such as 12h, 30d or 6 months
        #[arg(long, value_name = "AGE", value_parser = parse_age)]
        older_than: Option<SystemTime>,
        #[command(flatten)]
        options: RemovalOptions,
    },
    /// Remove everything that is not in use
    Clear {
        #[command(flatten)]
        options: RemovalOptions,
    },
}

/// The options of the subcommands that remove files.
#[derive(Args, Debug, PartialEq)]
pub struct RemovalOptions {
    /// List what would be removed, and remove nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Print a JSON object, with exact numbers
    #[arg(long)]
    pub json: bool,
}

/// The time that is as long ago as `text` says. Days have 24 hours.
fn parse_age(text: &str) -> Result<SystemTime, String> {
    let span = text.parse::<Span>().ok().filter(|span| !span.is_negative());
    let then = span.and_then(|span| Timestamp::now().to_zoned(TimeZone::UTC).checked_sub(span).ok());
    then.map(|then| then.timestamp().into()).ok_or_else(|| "not an age such as 12h, 30d or 6 months".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ages_have_units() {
        let cases = [
            ("0s", 0),
            ("90 min", 5400),
            ("90m", 5400),
            ("12h", 43_200),
            ("30d", 30 * 86_400),
            ("2 weeks", 14 * 86_400),
            ("1d 1h", 90_000),
        ];
        for (text, seconds) in cases {
            let age = parse_age(text).unwrap().elapsed().unwrap();
            let expected = Duration::from_secs(seconds);
            assert!(age >= expected && age < expected + Duration::from_secs(3600), "{text}: {age:?}");
        }
        let year = parse_age("1y").unwrap().elapsed().unwrap().as_secs() / 86_400;
        assert!((365..=366).contains(&year), "{year} days");
        for text in ["", "30", "d", "-3d", "3 days ago", "3 apples", "99999999999 years"] {
            assert!(parse_age(text).is_err(), "{text}");
        }
    }
}
