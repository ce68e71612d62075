//! `fastsock doctor`: what acceleration needs, whether it is there, what to do.

use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The device to check [default: that of the default route].
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

pub(crate) fn doctor(args: Args) -> anyhow::Result<ExitCode> {
    let _ = args.device;
    Ok(ExitCode::SUCCESS)
}
