//! Names of clusters, as the command line takes them: text in, a value out that says what to connect to, or one error.
//! Nothing is opened or looked up here. Simulated clusters are no [`super::Fabric`]s and have no such name.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::shm::{ShmError, ShmName};

/// Names a cluster: `embedded`, `shm:NAME[,NAME..]` or `verbs:HOST:PORT[,HOST:PORT..]`. All compute nodes of a cluster
/// name the same servers in the same order.
///
/// Code that runs on a cluster is generic over its [`Fabric`](super::Fabric): [`ClusterName::open`] chooses it.
///
/// ```
/// # use farwood_runtime::ClusterName;
/// let name: ClusterName = "shm:left,right".parse()?;
/// assert_eq!(name, ClusterName::Shm(vec!["left".into(), "right".into()]));
/// assert_eq!(name.to_string(), "shm:left,right");
/// assert!("tcp:left".parse::<ClusterName>().is_err());
/// # Ok::<_, farwood_runtime::ClusterNameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterName {
    /// Memory of this process.
    Embedded,
    /// Memory servers on this host, by the names of their regions ([`ShmName`]).
    Shm(Vec<String>),
    /// Memory servers behind NICs, by the addresses of their control services.
    Verbs(Vec<String>),
}

/// Says why a text names no cluster.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ClusterNameError {
    /// No such fabric.
    #[error("{text:?} names no cluster: choose embedded, shm:NAME or verbs:HOST:PORT")]
    Unknown { text: String },
    /// A region that cannot have that name.
    #[error("shm: {name:?} cannot name a memory server: {reason}; write shm:NAME[,NAME..]")]
    Region { name: String, reason: &'static str },
    /// No address.
    #[error(
        "verbs: {address:?} is not HOST:PORT (an IPv6 address goes in brackets); write verbs:HOST:PORT[,HOST:PORT..]"
    )]
    Address { address: String },
    /// A server that is named more than once.
    #[error("{text} names {server:?} twice")]
    Twice { text: String, server: String },
}

impl FromStr for ClusterName {
    type Err = ClusterNameError;

    fn from_str(text: &str) -> Result<Self, ClusterNameError> {
        if text == "embedded" {
            return Ok(ClusterName::Embedded);
        }
        let (fabric, list) = text.split_once(':').unwrap_or((text, ""));
        let servers: Vec<String> = list.split(',').map(str::to_owned).collect();
        match fabric {
            "shm" => servers.iter().try_for_each(|name| check_region(name))?,
            "verbs" => servers.iter().try_for_each(|address| check_address(address))?,
            _ => return Err(ClusterNameError::Unknown { text: text.into() }),
        }
        if let Some((_, server)) =
            servers.iter().enumerate().find(|(at, server)| servers[..*at].contains(server))
        {
            return Err(ClusterNameError::Twice { text: text.into(), server: server.clone() });
        }
        Ok(if fabric == "shm" { ClusterName::Shm(servers) } else { ClusterName::Verbs(servers) })
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterName::Embedded => f.write_str("embedded"),
            ClusterName::Shm(names) => write!(f, "shm:{}", names.join(",")),
            ClusterName::Verbs(addresses) => write!(f, "verbs:{}", addresses.join(",")),
        }
    }
}

fn check_region(name: &str) -> Result<(), ClusterNameError> {
    match ShmName::new(name) {
        Err(ShmError::Name { name, reason }) => Err(ClusterNameError::Region { name, reason }),
        _ => Ok(()),
    }
}

fn check_address(address: &str) -> Result<(), ClusterNameError> {
    let is_one = address.rsplit_once(':').is_some_and(|(host, port)| {
        // An IPv6 address without brackets would lose its last group to the port.
        let bracketed = host.starts_with('[') && host.ends_with(']');
        !host.is_empty() && (bracketed || !host.contains(':')) && port.parse::<u16>().is_ok_and(|n| n > 0)
    });
    if is_one { Ok(()) } else { Err(ClusterNameError::Address { address: address.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_were_written() {
        let names = [
            "embedded",
            "shm:a",
            "shm:a,b",
            "shm:/mnt/huge/farwood",
            "shm:./file,/dev/dax0.0",
            "verbs:a:1",
            "verbs:10.0.0.1:7077,b:7077",
            "verbs:[fe80::1]:7077",
        ];
        for text in names {
            assert_eq!(text.parse::<ClusterName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_names_no_cluster_is_refused() {
        let parse = |text: &str| text.parse::<ClusterName>().unwrap_err();
        for text in ["", "tcp", "embedded:", "sim:connectx5", "shmem:a"] {
            assert_eq!(parse(text), ClusterNameError::Unknown { text: text.into() });
        }
        for text in ["shm", "shm:", "shm:a,", "shm:,a", "shm:/mnt/", "shm:a\nb", &format!("shm:{:300}", "a")]
        {
            assert!(matches!(parse(text), ClusterNameError::Region { .. }), "{text}");
        }
        for address in ["", "a", "a:", ":1", "a:0", "a:65536", "fe80::1:7077", "a:1,", "a:x"] {
            let text = format!("verbs:{address}");
            assert!(matches!(parse(&text), ClusterNameError::Address { .. }), "{text}");
        }
        for text in ["shm:a,b,a", "verbs:a:1,a:1"] {
            assert!(matches!(parse(text), ClusterNameError::Twice { .. }), "{text}");
        }
    }
}
