//! probe
use farwood_runtime::*;
use std::rc::Rc;
fn threads() -> Vec<String> {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|t| {
            let p = t.unwrap().path();
            let r = |f| std::fs::read_to_string(p.join(f)).unwrap_or_default();
            format!(
                "{} {} {}",
                r("comm").trim(),
                r("schedstat").split(' ').next().unwrap().to_string(),
                r("wchan")
            )
        })
        .collect()
}
#[test]
fn probe() {
    for listen in [false, true] {
        let cluster = Cluster::embedded(EmbeddedConfig {
            servers: 2,
            bytes_per_server: 4 << 20,
            chunk_bytes: 1 << 20,
            locks_per_server: 64,
            ..Default::default()
        })
        .unwrap();
        let node = ComputeNode::new(cluster, NodeConfig { shards: 2, ..Default::default() });
        node.run(move |shard| async move {
            if listen {
                let own = shard.clone();
                shard.listen(
                    Port(0),
                    Rc::new(move |from, m| {
                        if m.0[0] == 0 {
                            own.send(from, Port(0), Message([1, 0, 0]))
                        }
                    }),
                );
            }
            if shard.id().0 == 1 {
                for i in 0..4 {
                    glommio::timer::sleep(std::time::Duration::from_millis(30)).await;
                    eprintln!("{i} {:?}", threads());
                }
            }
        })
        .unwrap();
    }
}
