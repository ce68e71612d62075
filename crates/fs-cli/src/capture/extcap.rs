//! Wireshark's interface for external capture programs (wireshark-extcap(4)): requests are options,
//! replies are lines.

use std::path::PathBuf;

/// Wireshark's name for the interface.
const INTERFACE: &str = "fastsock";

#[derive(clap::Args, Debug)]
#[group(id = "extcap")]
pub(super) struct Args {
    /// Lists the interfaces.
    #[arg(long, hide = true)]
    extcap_interfaces: bool,
    /// Lists the link types.
    #[arg(long, hide = true)]
    extcap_dlts: bool,
    /// Lists the options.
    #[arg(long, hide = true)]
    extcap_config: bool,
    /// Wireshark captures.
    #[arg(long, hide = true)]
    capture: bool,
    /// Of which interface.
    #[arg(long, hide = true, value_name = "NAME")]
    extcap_interface: Option<String>,
    /// Where to.
    #[arg(long, hide = true, value_name = "PATH", requires = "capture")]
    pub(super) fifo: Option<PathBuf>,
    /// Wireshark's version.
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    extcap_version: Option<String>,
}

/// Returns the reply to Wireshark's request, or `None` if there was no request.
pub(super) fn answer(args: &Args) -> anyhow::Result<Option<String>> {
    if args.extcap_interfaces {
        return Ok(Some(format!(
            "extcap {{version={}}}{{help=fastsock capture --help}}\n\
             interface {{value={INTERFACE}}}{{display=fastsock: accelerated connections}}\n",
            env!("CARGO_PKG_VERSION")
        )));
    }
    if args.extcap_interface.as_deref().is_some_and(|name| name != INTERFACE) {
        anyhow::bail!("there is no such interface: use `{INTERFACE}`");
    }
    // The file has each packet's own link type.
    let dlts = "dlt {number=101}{name=LINKTYPE_RAW}{display=Raw IP, and Ethernet for frames of the device}\n";
    Ok(match (args.extcap_dlts, args.extcap_config) {
        (true, _) => Some(dlts.into()),
        (_, true) => Some(String::new()),
        _ => None,
    })
}
