//! Lock tables through their public API, on a fake fabric whose every step the test decides.

mod backlog;
mod cancellation;
mod clients;
mod contention;
mod embedded;
mod exclusion;
mod fake;
mod faults;
mod handovers;
mod images;
mod patience;
mod payload;
mod recovery;
mod shared;
mod shared_deaths;
mod shared_singly;
mod takeover;
mod traffic;
mod window_shards;
mod windows;
