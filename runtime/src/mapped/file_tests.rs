//! Tests of region files: what is replaced and what is refused, and what clients are told.

#![expect(unsafe_code, reason = "touches a page of a mapping")]

use std::os::unix::fs::PermissionsExt;

use super::super::access::Access;
use super::super::line::LineMode;
use super::super::region::Region;
use super::*;

/// A folder of this test's own, in tmpfs where there is one.
pub(in super::super) struct Folder(PathBuf);

impl Folder {
    pub(in super::super) fn new(test: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = parent.join(format!("farwood-test-{}-{test}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    pub(in super::super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn config(instance: u128) -> RegionConfig {
    RegionConfig { line_mode: LineMode::Sequence, ..RegionConfig::new(64 << 10, instance) }
}

fn refusal(result: Result<Region, RegionError>) -> RegionError {
    result.err().expect("it is refused")
}

#[test]
fn clients_see_what_the_server_and_others_write() {
    let folder = Folder::new("see");
    for (name, path) in [
        ("tmpfs", folder.path("a")),
        ("disk", std::env::temp_dir().join(format!("farwood-see-{}", std::process::id()))),
    ] {
        for line_mode in [LineMode::Auto, LineMode::Vector, LineMode::Sequence, LineMode::Plain] {
            // Vectors are not for every CPU.
            let Ok(detected) = line_mode.detect() else { continue };
            let server = Region::create(&path, &RegionConfig { line_mode, ..config(7) }).unwrap();
            let (one, two) = (Region::open(&path, 7).unwrap(), Region::open(&path, 7).unwrap());
            assert_eq!((one.bytes(), one.line_mode()), (64 << 10, detected), "{name}");
            let mut line = [0xff; 64];
            Access::to(&two).read(one.bytes() - 64, &mut line).unwrap();
            assert_eq!(line, [0; 64], "{name} {line_mode:?}: zeroed at first");
            Access::to(&one).write(4096, &[5; 128]).unwrap();
            assert_eq!(Access::to(&two).faa(4096 + 64, 1), Ok(0x0505_0505_0505_0505));
            assert_eq!(
                Access::to(&server).cas(4096 + 64, 0x0505_0505_0505_0506, 9),
                Ok(0x0505_0505_0505_0506)
            );
            assert_eq!(Access::to(&one).cas(4096 + 64, 1, 2), Ok(9));
            Access::to(&one).read(4096 + 64, &mut line).unwrap();
            assert_eq!((line[0], line[7], line[8]), (9, 0, 5));
        }
    }
}

#[test]
fn a_server_removes_its_own_file_and_no_other() {
    let folder = Folder::new("remove");
    let path = folder.path("a");
    let region = Region::create(&path, &config(1)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(folder.names(), ["a"]);
    drop(region);
    assert!(folder.names().is_empty());
    let region = Region::create(&path, &config(1)).unwrap();
    std::fs::rename(&path, folder.path("b")).unwrap();
    std::fs::write(&path, "mine").unwrap();
    drop(region);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let open = Region::open(&folder.path("b"), 1).unwrap();
    drop(open);
    assert!(folder.path("b").exists(), "clients remove nothing");
}

#[test]
fn never_destroys_what_is_not_farwoods() {
    let folder = Folder::new("occupied");
    let path = folder.path("a");
    for contents in [&b"x"[..], b"FARWOO", b"FARWOODn and more", &[0; 8192]] {
        std::fs::write(&path, contents).unwrap();
        let error = refusal(Region::create(&path, &config(1)));
        assert!(matches!(error, RegionError::Occupied { .. }), "{error}");
        assert!(error.to_string().contains("exists and is not a Farwood region"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), contents);
    }
    assert_eq!(folder.names(), ["a"]);
    let error = refusal(Region::create(&folder.0, &config(1)));
    assert!(matches!(error, RegionError::Occupied { .. }), "{error}");
    let error = refusal(Region::create(Path::new("/dev/zero"), &config(1)));
    assert!(matches!(error, RegionError::Occupied { .. }), "{error}");
    std::fs::write(&path, b"").unwrap();
    assert!(Region::create(&path, &config(1)).is_ok(), "an empty file is no loss");
}

#[test]
fn replaces_the_file_of_a_dead_server_but_not_of_a_live_one() {
    let folder = Folder::new("replace");
    let path = folder.path("a");
    let first = Region::create(&path, &config(1)).unwrap();
    let client = Region::open(&path, 1).unwrap();
    let error = refusal(Region::create(&path, &config(2)));
    let RegionError::ServerRuns { pid, .. } = &error else { panic!("{error}") };
    assert_eq!(*pid, std::process::id());
    // The file of a killed server keeps its name.
    std::fs::hard_link(&path, folder.path("kept")).unwrap();
    drop(first);
    std::fs::rename(folder.path("kept"), &path).unwrap();
    Access::to(&client).write(4096, &[1; 8]).unwrap();
    let link = folder.path("link");
    std::os::unix::fs::symlink("a", &link).unwrap();
    let second = Region::create(&link, &config(2)).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    let mut word = [9; 8];
    Access::to(&second).read(4096, &mut word).unwrap();
    assert_eq!(word, [0; 8], "a new file, not the one that clients still have");
    Access::to(&client).read(4096, &mut word).unwrap();
    assert_eq!(word, [1; 8]);
    let error = refusal(Region::open(&path, 1));
    assert!(matches!(error, RegionError::OtherInstance { .. }), "{error}");
    Region::open(&path, 2).unwrap();
}

#[test]
fn cleans_up_after_a_server_that_was_killed_while_it_began() {
    let folder = Folder::new("begun");
    let (path, begun) = (folder.path("a"), folder.path(".a.farwood-new"));
    std::fs::write(&begun, [0; 8192]).unwrap();
    let half = open(&begun).unwrap();
    assert!(range_lock::try_lock(&half, SERVER, Kind::Exclusive).unwrap());
    let error = refusal(Region::create(&path, &config(1)));
    assert!(matches!(error, RegionError::ServerRuns { pid: 0, .. }), "{error}");
    drop(half);
    let region = Region::create(&path, &config(1)).unwrap();
    assert_eq!(folder.names(), ["a"]);
    drop(region);
}

/// Servers that begin at the same time: one gets the path, and none loses what has been given.
#[test]
fn one_of_many_servers_gets_the_path() {
    let folder = Folder::new("race");
    let path = &folder.path("a");
    for round in 0..20 {
        let results: Vec<_> = std::thread::scope(|scope| {
            let start = |instance| scope.spawn(move || Region::create(path, &config(instance)));
            let threads: Vec<_> = (1..=3).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let won: Vec<_> = results.iter().zip(1..).filter(|(result, _)| result.is_ok()).collect();
        let &[(_, instance)] = &won[..] else { panic!("round {round}: {} servers have the path", won.len()) };
        Region::open(path, instance).unwrap();
        if round % 2 == 0 {
            // The next round finds a dead server's file.
            std::fs::hard_link(path, folder.path("kept")).unwrap();
            drop(results);
            std::fs::rename(folder.path("kept"), path).unwrap();
        }
    }
}

#[test]
fn clients_are_told_what_is_wrong_with_a_file() {
    let folder = Folder::new("wrong");
    let path = folder.path("a");
    assert!(matches!(refusal(Region::open(&path, 1)), RegionError::Missing { .. }));
    let region = Region::create(&path, &config(1)).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let length = bytes.len() as u64;
    assert!(matches!(refusal(Region::open(&path, 2)), RegionError::OtherInstance { .. }));
    drop(region);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        refusal(Region::open(&path, 1))
    };
    let error = with(&|bytes| bytes.truncate(length as usize - 1));
    assert!(
        matches!(error, RegionError::TooSmall { found, needed, .. } if found == length - 1 && needed == length)
    );
    assert!(matches!(with(&|bytes| bytes.truncate(4096)), RegionError::TooSmall { found: 4096, .. }));
    for length in [0, 8, CODED_BYTES - 1] {
        assert!(matches!(with(&|bytes| bytes.truncate(length)), RegionError::NotFarwood { .. }));
    }
    assert!(matches!(with(&|bytes| bytes[..8].fill(0)), RegionError::NotFarwood { .. }), "half made");
    assert!(matches!(
        with(&|bytes| bytes[8] = 99),
        RegionError::Version { found: 99, known: LAYOUT_VERSION, .. }
    ));
    assert!(matches!(
        with(&|bytes| bytes[52..56].copy_from_slice(&[1, 0, 0, 0])),
        RegionError::NotFarwood { .. }
    ));
    assert!(matches!(refusal(Region::open(&folder.0, 1)), RegionError::NotFarwood { .. }));
    let dead = std::fs::write(&path, &bytes).map(|()| Region::open(&path, 1));
    dead.unwrap().expect("the file is whole again");
}

#[test]
fn says_whose_file_it_is_when_it_may_not_be_opened() {
    let folder = Folder::new("denied");
    let path = folder.path("a");
    let _region = Region::create(&path, &config(1)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    // As another user, since root may open everything. Counts for the calling thread only.
    let open_as_another_user = || {
        nix::unistd::setfsuid(65534.into());
        Region::open(&path, 1)
    };
    let error =
        std::thread::scope(|scope| refusal(scope.spawn(open_as_another_user).join().unwrap())).to_string();
    let owner = std::fs::metadata(&path).unwrap().uid();
    assert!(error.contains(&format!("belongs to user {owner} and has mode 0400")), "{error}");
}

#[test]
fn says_what_is_free_when_there_is_not_enough() {
    let folder = Folder::new("room");
    let path = folder.path("a");
    let huge = RegionConfig { bytes: 1 << 50, ..config(1) };
    let error = refusal(Region::create(&path, &huge));
    let RegionError::NoRoom { needed, free, .. } = error else { panic!("{error}") };
    assert!(needed > 1 << 50 && free < 1 << 50);
    assert!(error.to_string().contains("are free") && error.to_string().contains("--memory"), "{error}");
    assert!(folder.names().is_empty(), "nothing is left behind");
    for bytes in [u64::MAX, 1 << 63] {
        let error = refusal(Region::create(&path, &RegionConfig { bytes, ..config(1) }));
        assert!(matches!(error, RegionError::Config(_)), "{error}");
    }
    let system = |huge_pages, memory| FileSystem { huge_pages, memory, block_bytes: 2 << 20, free: None };
    assert!(remedy(&path, &system(true, false)).contains("/proc/sys/vm/nr_hugepages"));
    assert!(remedy(&path, &system(false, true)).contains("mount -o remount,size="));
}

#[test]
fn devices_are_described_by_sysfs() {
    let folder = Folder::new("sysfs");
    let write = |name: &str, value: &str| std::fs::write(folder.path(name), value).unwrap();
    assert!(Device::at(&folder.0).is_none());
    write("size", "268435456\n");
    write("align", "2097152\n");
    let device = Device::at(&folder.0).unwrap();
    assert_eq!((device.bytes, device.align), (256 << 20, 2 << 20));
    write("align", "3\n");
    assert!(Device::at(&folder.0).is_none());
}

/// Regions of at least a huge page are mapped so that huge pages can be used, by the server and by clients.
#[test]
fn large_regions_are_aligned_to_huge_pages() {
    let folder = Folder::new("huge");
    let path = folder.path("a");
    for line_mode in [LineMode::Sequence, LineMode::Plain] {
        let config = RegionConfig { bytes: (8 << 20) + 4096, line_mode, ..config(1) };
        let server = RegionFile::create(&path, header_for(&config), &config).unwrap();
        let client = RegionFile::open(&path, 1).unwrap();
        for file in [&server, &client] {
            assert!((file.mapping.start() as u64).is_multiple_of(HUGE_BYTES));
            assert!(file.header.file_bytes.is_multiple_of(HUGE_BYTES));
        }
        // SAFETY: inside the mapping. Touching it makes the page table have it.
        unsafe { client.mapping.start().add(5 << 20).read_volatile() };
        let (by_server, by_client) =
            (server.mapping.huge_bytes().unwrap(), client.mapping.huge_bytes().unwrap());
        println!("{line_mode:?}: {by_server} bytes on huge pages, a client sees {by_client}");
        // Not every kernel gives them; one that gives them to the server gives them to clients.
        assert_eq!(by_server > 0, by_client > 0);
        assert!(by_server <= server.mapping.bytes());
    }
}

fn header_for(config: &RegionConfig) -> Header {
    let slots = if config.line_mode == LineMode::Sequence { 4096 } else { 0 };
    let parts = super::super::header::Parts::of(config.bytes, slots).unwrap();
    Header {
        mode: config.line_mode,
        instance: config.instance,
        region_bytes: config.bytes,
        file_bytes: parts.end,
        server_pid: 1,
        journal_slots: slots,
    }
}

#[test]
fn reserved_huge_pages_are_not_replaced_by_others() {
    let folder = Folder::new("reserved");
    let reserved = RegionConfig { huge_pages: HugePages::Reserved, ..config(1) };
    for path in [folder.path("region"), folder.path("missing").join("region")] {
        let refused = refusal(Region::create(&path, &reserved));
        assert!(matches!(refused, RegionError::NotHugetlbfs { .. }), "{refused}");
        assert!(refused.to_string().contains("mount -t hugetlbfs"), "{refused}");
    }
    assert!(folder.names().is_empty());
}
