//! Tests of kinds and specs by their names.

use super::*;

#[test]
fn kinds_have_names() {
    for &kind in IndexKind::ALL {
        assert_eq!(IndexKind::named(kind.name()), Some(kind));
        let spec = kind.spec(kind.usual_limits(), Nodes::Usual);
        assert_eq!((spec.kind(), spec.check()), (kind, Ok(())));
    }
    assert_eq!(IndexKind::named("warp"), None);
}

#[test]
fn techniques_are_set_by_name() {
    for &kind in IndexKind::ALL {
        let mut spec = kind.spec(Limits { max_key: 8, max_value: 8 }, Nodes::Tiny).without_techniques();
        assert!(spec.techniques().iter().all(|(_, on)| !on));
        for (name, _) in kind.techniques() {
            assert!(spec.set_technique(name, true));
        }
        assert!(spec.techniques().iter().all(|(_, on)| *on));
        assert!(!spec.set_technique("warp", true));
    }
}
