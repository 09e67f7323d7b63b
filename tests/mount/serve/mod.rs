//! `weightfs serve`: real clients over loopback, as the own user and as others.

mod access;
mod clients;
mod files;
mod limits;
pub mod support;
