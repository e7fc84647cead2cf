//! The subcommands, one file each.

pub(crate) mod bench;
pub(crate) mod sim;
mod sim_paper;
mod sim_run;
