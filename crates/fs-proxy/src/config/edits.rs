//! Changes of header fields.

use crate::fields::Field;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Fields that are removed and set, in all requests or responses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EditsConfig {
    /// Names and values, which replace those that came. `edits` has the placeholders.
    #[serde(deserialize_with = "set")]
    pub(crate) set: BTreeMap<String, String>,
    #[serde(deserialize_with = "removed")]
    pub(crate) remove: Vec<String>,
}

fn set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let set = BTreeMap::<String, String>::deserialize(deserializer)?;
    for (name, value) in &set {
        check(name).map_err(serde::de::Error::custom)?;
        if http::HeaderValue::from_str(value).is_err() || value.trim() != value {
            return Err(serde::de::Error::custom(format!("`{value}` is not the value of a header field")));
        }
    }
    Ok(set)
}

fn removed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    for name in &names {
        check(name).map_err(serde::de::Error::custom)?;
        if Field::of(name) == Field::Host {
            return Err(serde::de::Error::custom("a request must have a `Host`"));
        }
    }
    Ok(names)
}

/// Message framing and what is about a connection cannot be changed.
fn check(name: &str) -> Result<(), String> {
    if name.parse::<http::HeaderName>().is_err() {
        return Err(format!("`{name}` is not the name of a header field"));
    }
    let is_ours = ["trailer", "via"].iter().any(|ours| name.eq_ignore_ascii_case(ours));
    match Field::of(name) {
        Field::EndToEnd if !is_ours => Ok(()),
        Field::Host => Ok(()),
        _ => Err(format!("`{name}` belongs to the proxy, which needs it for its connections")),
    }
}
