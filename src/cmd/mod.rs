//! The commands, one per file.

#[cfg(feature = "remote")]
pub mod cache;
pub mod cat;
pub mod check;
pub mod complete_words;
pub mod cp;
pub mod demo;
pub mod diff;
pub mod doctor;
pub mod export;
pub mod files;
pub mod id;
pub mod inspect;
pub mod ls;
pub mod metadata;
pub mod mount;
#[cfg(feature = "serve")]
pub mod serve;
pub mod status;
pub mod summary;
pub mod umount;
pub mod write_docs;
