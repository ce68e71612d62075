//! Values of several keys: times, paths and networks.

use serde::{Deserialize, Deserializer};
use std::net::IpAddr;
use std::time::Duration;

/// Addresses with a common prefix, such as `10.0.0.0/8`; one address is `/32` or `/128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    bits: u128,
    prefix: u32,
    is_v4: bool,
}

impl Network {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let (bits, is_v4) = bits(address.parse().ok()?);
        let width = if is_v4 { 32 } else { 128 };
        let prefix = prefix.map_or(Some(width), |prefix| prefix.parse().ok()).filter(|prefix| *prefix <= width)?;
        Some(Self { bits, prefix, is_v4 })
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let (bits, is_v4) = bits(address);
        let width = if is_v4 { 32 } else { 128 };
        is_v4 == self.is_v4 && (bits ^ self.bits).checked_shr(width - self.prefix).unwrap_or(0) == 0
    }
}

fn bits(address: IpAddr) -> (u128, bool) {
    match address.to_canonical() {
        IpAddr::V4(address) => (u128::from(u32::from(address)), true),
        IpAddr::V6(address) => (u128::from(address), false),
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a network such as \"10.0.0.0/8\"")))
    }
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text)
        .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a time such as \"500ms\", \"3s\" or \"2m\"")))
}

pub(super) fn optional_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let milliseconds = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(milliseconds)?)).filter(|time| !time.is_zero())
}

pub(super) fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    check_path(&text).map_err(serde::de::Error::custom)?;
    Ok(Some(text))
}

pub(super) fn paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let check = |text: &String| match text.contains('?') {
        true => Err(format!("`{text}` is not a path: routes compare it without the query")),
        false => check_path(text),
    };
    texts.iter().try_for_each(check).map_err(serde::de::Error::custom)?;
    Ok(texts)
}

fn check_path(text: &str) -> Result<(), String> {
    let is_path = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_path { Ok(()) } else { Err(format!("`{text}` is not a path such as \"/health\"")) }
}
