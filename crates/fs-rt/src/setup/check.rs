//! Checks a builder's settings before anything is opened.

use super::links::link_error;
use crate::broker::SharedDevice;
use crate::builder::{Builder, LinkChoice};
use crate::error::BuildError;
use crate::sys::online_cpus;
use fs_xdp::NetDevice;
use std::num::NonZero;
use std::sync::Arc;

/// Chooses the CPUs if the program names none: as many of the process's CPUs as the smallest device
/// has queues, or with kernel sockets as it may use at a time.
pub(super) fn choose_cores(builder: &mut Builder, shared: &[Arc<SharedDevice>]) -> Result<(), BuildError> {
    if !builder.cores.is_empty() {
        return Ok(());
    }
    let queues = match &builder.link {
        LinkChoice::Memory(links) => links.len(),
        LinkChoice::Tap => 1,
        // As many as tokio has workers. It reads the quota of a container, unlike the CPU set.
        LinkChoice::Kernel => std::thread::available_parallelism().map_or(1, NonZero::get),
        _ if !shared.is_empty() => shared.iter().map(|one| one.device.queues as usize).min().unwrap_or(1),
        // A missing device is reported when it is opened.
        _ => {
            let devices = builder.devices.iter().filter_map(|name| NetDevice::find(name).ok());
            let named = builder.queues.as_ref().map(|named| named.len());
            named.or_else(|| devices.map(|device| device.queue_counts().rx as usize).min()).unwrap_or(1)
        }
    };
    let available = online_cpus().map_err(|source| BuildError::System { what: "cannot read the CPU set", source })?;
    if queues > available.len() {
        tracing::info!(queues, cores = available.len(), "each core has several queues of the device");
    }
    if matches!(builder.link, LinkChoice::Kernel) {
        builder.pin &= pins_kernel_cores(queues, available.len());
    }
    builder.cores = available.into_iter().take(queues.max(1)).collect();
    Ok(())
}

/// Returns false if a quota limits how many CPUs are used at a time, and not which: all programs with
/// a quota would be pinned to the same first CPUs.
fn pins_kernel_cores(parallelism: usize, available: usize) -> bool {
    parallelism >= available
}

/// Checks the queues that are named.
fn check_queues(builder: &Builder, is_xdp: bool) -> Result<(), BuildError> {
    let Some(named) = &builder.queues else { return Ok(()) };
    let mut seen = std::collections::BTreeSet::new();
    let twice = named.iter().find(|queue| !seen.insert(**queue));
    let wrong = match twice {
        Some(queue) => format!("queue {queue} is named twice in .queues(…)"),
        None if named.is_empty() => "no queue is named in .queues(…): omit it to take all of them".into(),
        None if !is_xdp => "this kind of link has no queues of a device: remove .queues(…)".into(),
        None if !builder.asks_for_routes => {
            "with .queues(…) the kernel makes the connections, so it must be asked for routes: remove \
             .ask_for_routes(false)"
                .into()
        }
        None => return Ok(()),
    };
    Err(BuildError::Config(wrong))
}

/// Minimum frames of a core: those that a queue needs to receive, and as many in flight. With fewer, no
/// link can be opened.
const MIN_FRAMES: u32 = 128;

/// Checks settings that contradict each other or are out of range. Each error names the cause and the cure.
pub(super) fn check(builder: &Builder) -> Result<(), BuildError> {
    let memory_links = matches!(builder.link, LinkChoice::Memory(_));
    let kernel = matches!(builder.link, LinkChoice::Kernel);
    if builder.devices.is_empty() && !memory_links && !kernel {
        return Err(BuildError::NoDevice);
    }
    if kernel && !builder.standalone.is_empty() {
        return Err(BuildError::Config(
            "the kernel's sockets have the host's addresses: drop .standalone(…), or take another link".into(),
        ));
    }
    let devices = if memory_links { 1 } else { builder.devices.len() };
    if !builder.standalone.is_empty() && builder.standalone.len() != devices {
        return Err(BuildError::Config(format!(
            "{} of {devices} devices have standalone addresses: give them to all or to none",
            builder.standalone.len()
        )));
    }
    let is_xdp = matches!(builder.link, LinkChoice::XdpAuto | LinkChoice::Xdp { .. });
    if is_xdp && !builder.standalone.is_empty() {
        return Err(BuildError::Config(
            "AF_XDP uses the host's addresses, because the kernel answers ARP and NDISC for these only: remove \
             .standalone(…), or use the AF_PACKET link"
                .into(),
        ));
    }
    check_queues(builder, is_xdp)?;
    if builder.late_devices && !(is_xdp && builder.asks_for_routes) && !kernel {
        return Err(BuildError::Config(
            "late devices need AF_XDP and the kernel's sockets: remove .late_devices(…)".into(),
        ));
    }
    if !is_xdp && !kernel && builder.standalone.is_empty() {
        return Err(BuildError::Config(
            "this kind of link needs addresses of its own, because the host's kernel also sees and answers its \
             packets: add .standalone(…)"
                .into(),
        ));
    }
    if let LinkChoice::Memory(links) = &builder.link
        && links.len() != builder.cores.len()
    {
        return Err(BuildError::Config(format!(
            "{} memory links were given for {} cores: give one link per core",
            links.len(),
            builder.cores.len()
        )));
    }
    if let Some(size) = builder.frame_size
        && size != 2048
        && size != 4096
    {
        return Err(BuildError::Config(format!("the frame size is {size}: it must be 2048 or 4096")));
    }
    if builder.frames < MIN_FRAMES {
        return Err(BuildError::Config(format!(
            "{} frames were given for each core, and {MIN_FRAMES} are the minimum: raise .frames(…), or omit it \
             for the default of 16384",
            builder.frames
        )));
    }
    let ports_left = usize::from(u16::MAX - builder.ephemeral_first) + 1;
    let ephemeral_ports = builder.ports_to_reserve();
    if ephemeral_ports > 0 && (builder.ephemeral_first == 0 || ephemeral_ports > ports_left) {
        return Err(BuildError::Config(format!(
            "{} ephemeral ports from {} do not fit into ports 1 to 65535: lower .ephemeral_ports(…), or choose another \
             first port with .ephemeral_ports_from(…)",
            ephemeral_ports, builder.ephemeral_first
        )));
    }
    let least = builder.cores.len().next_power_of_two();
    if (1..least).contains(&ephemeral_ports) {
        return Err(BuildError::Config(format!(
            "{ephemeral_ports} ephemeral ports were given for {} cores, and each core needs ports of its own: \
             .ephemeral_ports({least}) is the minimum; omit it for the default",
            builder.cores.len()
        )));
    }
    if builder.pin {
        let mut seen = std::collections::BTreeSet::new();
        if let Some(&cpu) = builder.cores.iter().find(|cpu| !seen.insert(**cpu)) {
            return Err(BuildError::Config(format!(
                "CPU {cpu} is named twice in .cores(…), so two polling threads would share it: name each CPU once, \
                 or let the kernel place them with .pin(false)"
            )));
        }
        let available =
            online_cpus().map_err(|source| BuildError::System { what: "cannot read the CPU set", source })?;
        if let Some(&cpu) = builder.cores.iter().find(|cpu| !available.contains(cpu)) {
            return Err(BuildError::NoSuchCpu { cpu, available });
        }
    }
    Ok(())
}

/// Finds the named devices in the kernel.
pub(super) fn find_devices(builder: &Builder) -> Result<Vec<NetDevice>, BuildError> {
    if matches!(builder.link, LinkChoice::Memory(_) | LinkChoice::Tap) {
        return Ok(Vec::new());
    }
    let mut devices = Vec::with_capacity(builder.devices.len());
    for name in &builder.devices {
        let device = NetDevice::find(name).map_err(|error| link_error(name, error))?;
        // Loopback can be opened, but its connections get no reply: both of its ends are this
        // host's kernel.
        if device.is_loopback() {
            return Err(BuildError::Loopback { device: device.name });
        }
        if !device.is_up() {
            tracing::warn!(device = name, "the device is down and carries no packets: `ip link set {name} up`");
        }
        devices.push(device);
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_with_a_quota_are_not_pinned() {
        assert!(pins_kernel_cores(2, 2));
        assert!(!pins_kernel_cores(2, 64));
    }
}
