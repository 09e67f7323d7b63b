//! A cache for the results of long computations.

use super::id::View;
use crate::content::{self, Error, ReadRequest, WaitFor, WaitResource, reserve};
use crate::kept::KeptValues;
use std::fmt;
use std::sync::Arc;

const KEPT_MAX: usize = 64 << 20;

/// Approximate memory of a cached result besides its bytes.
const OVERHEAD: usize = 150;

/// Address space in bytes that must be free before a result is computed. It is more than a computation takes, because
/// freeing a block of up to 32 MiB would change the thresholds of malloc of glibc.
const HEADROOM: usize = 33 << 20;

/// Identifies a result: a file of a view, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultKey {
    /// The number of the model in this mount.
    pub model: u32,
    pub view: View,
    /// The number of the file, or of the part.
    pub item: u32,
}

impl ResultKey {
    /// The wait of a request that computes the result, which needs `need`. The scheduler lets one of the
    /// requests for a result compute it.
    pub fn wait(self, need: WaitResource) -> WaitFor {
        let Self { model, view, item } = self;
        WaitFor { need, key: Some(content::ResultId { model, kind: view.index(), item }) }
    }
}

/// The cached results of all models of a mount, least recently used ones evicted first.
pub struct CachedResults(KeptValues<ResultKey, Arc<[u8]>>);

impl Default for CachedResults {
    fn default() -> Self {
        Self(KeptValues::new(KEPT_MAX, |result| result.len() + OVERHEAD))
    }
}

impl CachedResults {
    /// The result for a key: the cached one, or that of `compute`, for which the request has to wait.
    pub fn get(
        &self,
        key: ResultKey,
        need: WaitResource,
        request: &ReadRequest,
        compute: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Arc<[u8]>, Error> {
        if let Some(kept) = self.kept(key) {
            return Ok(kept);
        }
        request.wait(key.wait(need))?;
        // The libraries that draw and compress end the program if an allocation fails.
        reserve(&mut Vec::new(), HEADROOM)?;
        let result: Arc<[u8]> = compute()?.into();
        self.0.keep(key, result.clone());
        Ok(result)
    }

    pub fn kept(&self, key: ResultKey) -> Option<Arc<[u8]>> {
        self.0.find(&key)
    }
}

impl fmt::Debug for CachedResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Results")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(item: u32) -> ResultKey {
        ResultKey { model: 0, view: View::new(3), item }
    }

    const NEED: WaitResource = WaitResource::Cores { bytes: 1, device: None };

    #[test]
    fn request_waits_only_for_a_result_that_is_not_kept() {
        let results = CachedResults::default();
        let get = |request: &ReadRequest| results.get(key(7), NEED, request, || Ok(vec![9]));
        let Err(Error::WouldBlock(wait)) = get(&ReadRequest::NOWAIT) else { panic!() };
        assert_eq!(wait, key(7).wait(NEED));
        let failed = results.get(key(7), NEED, &ReadRequest::only(wait), || Err(Error::Interrupted));
        assert!(matches!(failed, Err(Error::Interrupted)));
        assert!(matches!(get(&ReadRequest::only(key(8).wait(NEED))), Err(Error::WouldBlock(_))));
        assert_eq!(get(&ReadRequest::only(wait)).unwrap()[..], [9]);
        assert_eq!(get(&ReadRequest::NOWAIT).unwrap()[..], [9]);
    }
}
