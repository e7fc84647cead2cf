//! Values of `--fabric`: the kind of fabric, and where its memory servers are. Text in, a value out that can be
//! connected to, or one error. Nothing is opened or looked up here; that is for [`crate::connect`].

use std::net::SocketAddr;

#[cfg(feature = "verbs")]
use farwood::runtime::ibverbs::VerbsConfig;
use farwood::runtime::sim::Profile;
use farwood::{ClusterConfig, ClusterName, ClusterNameError, EmbeddedConfig};

use crate::error::CliError;

/// The NICs that can be simulated.
const PROFILES: &[Profile] = &Profile::ALL;
/// Address at which a memory server of the fabric verbs listens if it is not told.
const LISTEN_DEFAULT: &str = "0.0.0.0:7077";

/// Connection of compute node and memory servers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fabric {
    /// Memory of this process.
    Embedded,
    /// A simulation of such NICs, in virtual time.
    Sim(&'static Profile),
    /// Memory servers that run already.
    Connected(Servers),
}

/// Memory servers that run already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Servers {
    /// Their cluster, which is not of this process.
    pub(crate) cluster: ClusterName,
    options: VerbsOptions,
}

/// Options of this side of the fabric verbs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VerbsOptions {
    /// The RDMA device; the first one with an active port if none is named.
    pub(crate) device: Option<String>,
    /// The device's port; the first active one if none is given.
    pub(crate) port: Option<u8>,
    /// Index of the port's GID; chosen by itself if none is given.
    pub(crate) gid_index: Option<u8>,
}

impl VerbsOptions {
    /// Converts the options to those of the runtime.
    #[cfg(feature = "verbs")]
    pub(crate) fn config(&self) -> VerbsConfig {
        let VerbsOptions { device, port, gid_index } = self.clone();
        VerbsConfig { device, port, gid_index, ..VerbsConfig::default() }
    }

    fn is_default(&self) -> bool {
        *self == VerbsOptions::default()
    }
}

/// Place at which a memory server of this process is to be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this host, by the name of its region.
    Shm(String),
    /// Behind a NIC; the control service listens at that address.
    Verbs(SocketAddr, VerbsOptions),
}

impl Fabric {
    /// Parses `--fabric TEXT` with these options.
    ///
    /// # Errors
    /// If there is no such fabric, or the options do not fit it.
    pub(crate) fn parse(text: &str, options: VerbsOptions) -> Result<Self, CliError> {
        if text.starts_with("verbs:") {
            require_verbs()?;
        }
        let fabric = match text.parse() {
            Ok(ClusterName::Embedded) => Fabric::Embedded,
            Ok(cluster @ ClusterName::Verbs(_)) => {
                return Ok(Fabric::Connected(Servers { cluster, options }));
            }
            Ok(cluster) => Fabric::Connected(Servers { cluster, options: VerbsOptions::default() }),
            Err(ClusterNameError::Unknown { .. }) => match text.split_once(':').unwrap_or((text, "")) {
                ("sim", profile) => sim(profile)?,
                _ => {
                    return Err(CliError::Usage(format!(
                        "there is no fabric '{text}': choose embedded, shm:NAME, verbs:HOST:PORT or sim:PROFILE"
                    )));
                }
            },
            Err(error) => return Err(named_wrongly(&error)),
        };
        if options.is_default() {
            Ok(fabric)
        } else {
            Err(only_verbs("--device, --port and --gid-index", text))
        }
    }

    /// Returns its name as the command line spells it.
    pub(crate) fn name(&self) -> String {
        match self {
            Fabric::Embedded => "embedded".to_owned(),
            Fabric::Sim(profile) => format!("sim:{}", profile.name),
            Fabric::Connected(servers) => servers.name(),
        }
    }

    /// Tells whether the memory servers may have memory on their NICs. Only servers that run already know for sure.
    pub(crate) fn may_have_on_chip_memory(&self) -> bool {
        match self {
            // The servers are made with the default's device area.
            Fabric::Embedded => EmbeddedConfig::default().device_bytes > 0,
            Fabric::Sim(profile) => profile.device_bytes > 0,
            Fabric::Connected(_) => true,
        }
    }

    /// Tells whether time is virtual.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self, Fabric::Sim(_))
    }

    /// Tells whether the memory servers run already, with all they hold.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self, Fabric::Connected(_))
    }
}

impl Servers {
    /// Parses `--fabric TEXT` for commands that work on what running memory servers hold.
    ///
    /// # Errors
    /// Also if the fabric's servers end with the command.
    pub(crate) fn parse(text: &str, options: VerbsOptions) -> Result<Self, CliError> {
        match Fabric::parse(text, options)? {
            Fabric::Connected(servers) => Ok(servers),
            Fabric::Embedded | Fabric::Sim(_) => Err(CliError::Usage(format!(
                "the fabric {text} ends with the command that makes it: choose shm:NAME or verbs:HOST:PORT of a \
                 running `farwood memory-server`"
            ))),
        }
    }

    /// Returns their names as the command line spells them.
    pub(crate) fn name(&self) -> String {
        self.cluster.to_string()
    }

    /// Yields what they are connected with.
    pub(crate) fn config(&self) -> ClusterConfig {
        ClusterConfig {
            #[cfg(feature = "verbs")]
            verbs: self.options.config(),
            ..ClusterConfig::default()
        }
    }
}

impl Place {
    /// Parses `memory-server --fabric TEXT` with these options.
    ///
    /// # Errors
    /// If there is no such fabric, it takes no memory server of its own, or the options do not fit it.
    pub(crate) fn parse(text: &str, listen: Option<&str>, options: VerbsOptions) -> Result<Self, CliError> {
        if text == "verbs" {
            require_verbs()?;
            let listen = listen.unwrap_or(LISTEN_DEFAULT);
            let address = listen.parse::<SocketAddr>().map_err(|_| {
                CliError::Usage(format!(
                    "--listen {listen}: write ADDR:PORT with an IP address, as {LISTEN_DEFAULT}"
                ))
            })?;
            return Ok(Place::Verbs(address, options));
        }
        if text.starts_with("verbs:") {
            return Err(CliError::usage(
                "--fabric verbs: a memory server has no HOST:PORT here; write --fabric verbs --listen ADDR:PORT",
            ));
        }
        if !text.starts_with("shm:") {
            return Err(CliError::Usage(format!(
                "a memory server is for the fabrics shm and verbs, not for '{text}': choose shm:NAME or verbs"
            )));
        }
        if listen.is_some() {
            return Err(only_verbs("--listen", text));
        }
        if !options.is_default() {
            return Err(only_verbs("--device, --port and --gid-index", text));
        }
        match text.parse().map_err(|error| named_wrongly(&error))? {
            ClusterName::Shm(names) if names.len() == 1 => Ok(Place::Shm(names.concat())),
            _ => Err(CliError::usage("a memory server has one region: start one per name")),
        }
    }
}

fn only_verbs(flags: &str, text: &str) -> CliError {
    CliError::Usage(format!("{flags}: that is for the fabric verbs, not for {text}"))
}

fn sim(profile: &str) -> Result<Fabric, CliError> {
    if let Some(known) = PROFILES.iter().find(|known| known.name == profile) {
        return Ok(Fabric::Sim(known));
    }
    let known: Vec<_> = PROFILES.iter().map(|known| format!("sim:{}", known.name)).collect();
    Err(CliError::Usage(format!("there is no simulated NIC '{profile}': choose {}", known.join(" or "))))
}

fn require_verbs() -> Result<(), CliError> {
    if cfg!(feature = "verbs") { Ok(()) } else { Err(without_verbs()) }
}

/// Explains why a build without the cargo feature refuses.
pub(crate) fn without_verbs() -> CliError {
    CliError::usage(
        "this farwood was built without the fabric verbs: build it with `cargo build --release -p farwood-cli \
         --features verbs`",
    )
}

fn named_wrongly(error: &ClusterNameError) -> CliError {
    CliError::Usage(format!("--fabric {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Fabric, CliError> {
        Fabric::parse(text, VerbsOptions::default())
    }

    fn device() -> VerbsOptions {
        VerbsOptions { device: Some("mlx5_0".to_owned()), ..VerbsOptions::default() }
    }

    #[test]
    fn servers_on_this_host_have_names_or_paths() {
        for text in ["shm:a", "shm:a,b", "shm:/mnt/huge/farwood", "shm:./file,/dev/dax0.0"] {
            let fabric = parse(text).unwrap();
            assert!(fabric.is_connected() && !fabric.is_simulated());
            assert_eq!(fabric.name(), text);
        }
        let bad = [
            "shm",
            "shm:",
            "shm:a,",
            "shm:,a",
            "shm:a,a",
            "shm:/mnt/",
            "shm:a\nb",
            &format!("shm:{:300}", "a"),
        ];
        for text in bad {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, CliError::Usage(_)), "{text}: {error}");
        }
    }

    #[test]
    fn options_of_verbs_fit_nothing_else() {
        for text in ["shm:a", "embedded", "sim:connectx5"] {
            let error = Fabric::parse(text, device()).unwrap_err().one_line();
            assert!(error.contains("--device") && error.contains(text), "{error}");
        }
        assert!(Servers::parse("embedded", VerbsOptions::default()).is_err());
        assert!(Servers::parse("sim:connectx5", VerbsOptions::default()).is_err());
        assert!(Servers::parse("shm:a", VerbsOptions::default()).is_ok());
    }

    #[test]
    fn a_build_without_verbs_names_the_feature() {
        let error = Servers::parse("verbs:host:7077", device()).err().map(|error| error.one_line());
        assert_eq!(cfg!(feature = "verbs"), error.is_none(), "{error:?}");
        assert!(error.is_none_or(|error| error.contains("--features verbs")));
    }

    #[test]
    fn a_memory_server_is_one_place() {
        let place = |text, listen| Place::parse(text, listen, VerbsOptions::default());
        assert_eq!(place("shm:a", None).unwrap(), Place::Shm("a".to_owned()));
        let refused =
            [("shm:a,b", None), ("shm:a", Some("0.0.0.0:1")), ("embedded", None), ("verbs:h:1", None)];
        for (text, listen) in refused {
            assert!(matches!(place(text, listen), Err(CliError::Usage(_))), "{text} {listen:?}");
        }
        assert!(Place::parse("shm:a", None, device()).is_err());
        if cfg!(feature = "verbs") {
            let listen = |text| place("verbs", text).unwrap();
            assert_eq!(listen(None), Place::Verbs(([0, 0, 0, 0], 7077).into(), VerbsOptions::default()));
            assert_eq!(
                listen(Some("10.0.0.1:1")),
                Place::Verbs(([10, 0, 0, 1], 1).into(), VerbsOptions::default())
            );
            assert!(place("verbs", Some("host")).is_err());
        }
    }
}
