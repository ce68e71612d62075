//! Formats of the metrics: OpenMetrics 1.0, which prometheus-client writes, and Prometheus' classic
//! text format 0.0.4, for scrapers that do not ask for OpenMetrics. The two differ in which name of
//! a counter its HELP and TYPE lines have, and in the last line.

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Classic,
    OpenMetrics,
}

impl Format {
    /// Returns the format that a scraper prefers by its Accept headers (RFC 9110, section 12.5.1).
    /// Without a preference: the classic one.
    pub(super) fn wanted<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let (mut classic, mut open) = (0.0, 0.0);
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let quality = parts.filter_map(|part| part.strip_prefix("q=")).find_map(|q| q.parse().ok());
            let quality = quality.unwrap_or(1.0_f64);
            match kind.to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => open = quality.max(open),
                "text/plain" | "text/*" | "*/*" => classic = quality.max(classic),
                _ => {}
            }
        }
        if open > 0.0 && open >= classic { Self::OpenMetrics } else { Self::Classic }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Rewrites OpenMetrics as the classic format.
pub(super) fn classic(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    // A HELP line precedes its TYPE line, which says whether it is a counter.
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let total = if kind == "counter" { "_total" } else { "" };
            if let Some((_, meaning)) = help.take() {
                text.extend(["# HELP ", name, total, " ", meaning, "\n"]);
            }
            text.extend(["# TYPE ", name, total, " ", kind, "\n"]);
        } else if !line.starts_with("# ") {
            text.extend([line, "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapers_get_the_format_that_they_prefer() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            (&[][..], Format::Classic),
            (&["*/*"], Format::Classic),
            (&[prometheus], Format::OpenMetrics),
            (&["text/plain;version=0.0.4", "application/openmetrics-text; q=0.1"], Format::Classic),
            (&["application/openmetrics-text; version=1.0.0"], Format::OpenMetrics),
            (&["Application/OpenMetrics-Text;q=0"], Format::Classic),
            (&["text/html, ;;q=x,"], Format::Classic),
        ] {
            assert_eq!(Format::wanted(accept.iter().copied()), expected, "{accept:?}");
        }
    }

    #[test]
    fn counters_have_their_samples_name_in_the_classic_format() {
        let open = "# HELP p_bytes Bytes, 1 of # 2.\n# TYPE p_bytes counter\n# UNIT p_bytes bytes\np_bytes_total{a=\"# x\"} 1\n\
                    # HELP p_open Open.\n# TYPE p_open gauge\np_open 2\n# EOF\n";
        let expected = "# HELP p_bytes_total Bytes, 1 of # 2.\n# TYPE p_bytes_total counter\np_bytes_total{a=\"# x\"} 1\n\
                        # HELP p_open Open.\n# TYPE p_open gauge\np_open 2\n";
        assert_eq!(classic(open), expected);
    }
}
