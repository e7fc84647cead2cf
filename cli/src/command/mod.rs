//! The subcommands, one file each; and `bulk`, which two of them share.

pub(crate) mod bench;
mod bulk;
pub(crate) mod check;
pub(crate) mod create;
pub(crate) mod drop;
pub(crate) mod get;
pub(crate) mod load;
pub(crate) mod memory_server;
pub(crate) mod put;
pub(crate) mod remove;
pub(crate) mod scan;
pub(crate) mod sim;
mod sim_paper;
mod sim_run;
pub(crate) mod stat;
pub(crate) mod sweep;
