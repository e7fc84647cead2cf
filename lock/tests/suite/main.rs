//! Lock tables through their public API, on a fake fabric whose every step the test decides, or on real shards.

mod allocations;
mod backlog;
mod cancellation;
mod clients;
mod contention;
#[path = "../../../tests/kit/counting_allocator.rs"]
mod counting_allocator;
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
