use super::*;
use crate::access::Who;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, &|name| (name == "web").then_some(33))
}

/// What the README shows is a configuration.
#[test]
fn the_file_of_the_readme() {
    let readme = include_str!("../../../../README.md");
    let block = readme.split("```toml\n").find(|block| block.contains("[[rule]]")).unwrap();
    let block = block.split("```").next().unwrap();
    let config = Config::parse(block, &|name| (name == "www-data").then_some(33)).unwrap();
    assert_eq!(config.joins, [["self", "web"]]);
    assert!(!config.rules.allow(&Who { uid: 33, cgroup: Some("/") }, Call::Bind, 80));
    assert!(config.rules.allow(&Who { uid: 0, cgroup: Some("/") }, Call::Bind, 80));
}

#[test]
fn rules_are_read_in_their_order() {
    let config = parse(
        r#"
        [limits]
        arenas = 10

        [[rule]]
        action = "allow"
        call = "bind"
        user = "web"
        ports = [80, "8000-8999"]

        [[rule]]
        action = "deny"
        cgroup = "/jail/"
        [[rule]]
        action = "deny"
        call = "bind"
        ports = "1-1023"
        "#,
    )
    .unwrap();
    assert_eq!(config.limits, Limits { arenas: 10, ..Limits::default() });
    let may = |uid, cgroup, call, port| config.rules.allow(&Who { uid, cgroup: Some(cgroup) }, call, port);
    assert!(may(33, "/", Call::Bind, 80));
    assert!(may(33, "/jail/x", Call::Bind, 8999));
    assert!(!may(33, "/jail/x", Call::Connect, 8999));
    assert!(!may(33, "/", Call::Bind, 81));
    assert!(may(34, "/", Call::Connect, 81));
    assert!(!may(34, "/jail", Call::Connect, 5000));
    assert!(may(34, "/jailbird", Call::Connect, 5000));
}

#[test]
fn an_empty_file_allows_everything() {
    let config = parse("").unwrap();
    assert!(config.joins.is_empty());
    assert!(config.rules.allow(&Who { uid: 0, cgroup: Some("") }, Call::Connect, 1));
}

#[test]
fn errors_name_line_and_cause() {
    let cases = [
        ("lmits = 1", "unknown field `lmits`"),
        ("[limits]\narena = 1", "unknown field `arena`"),
        ("[limits]\narenas = 0", "line 1: a limit of 0 lets nobody in"),
        ("[limits]\narenas = 8000", "line 1: arenas = 8000: at most 7000"),
        ("[[rule]]\nuser = 1", "missing field `action`"),
        ("[[rule]]\naction = \"drop\"", "unknown variant `drop`"),
        ("[[rule]]\naction = \"deny\"\nuser = \"nobody-at-all\"", "line 3: no user is named `nobody-at-all`"),
        ("[[rule]]\naction = \"deny\"\nuser = -1", "a user's name or number"),
        ("[[rule]]\naction = \"deny\"\ncgroup = \"web\"", "line 3: `web` is not a cgroup's path"),
        ("[[rule]]\naction = \"deny\"\nports = \"9-1\"", "line 3: Range(\"9-1\") is not a port"),
        ("[[rule]]\naction = \"deny\"\nports = 0", "is not a port"),
        ("[[rule]]\naction = \"deny\"\nports = 70000", "a port, a range"),
        ("[[rule]]\naction = \"deny\"\nports = []", "line 3: an empty list of ports"),
        ("[[rule]]\naction = \"deny\"\ncall = \"listen\"", "unknown variant `listen`"),
        ("[[join]]\nnamespaces = [\"self\"]", "line 2: a join has two namespaces"),
        ("[[join]]\nnamespaces = [\"self\", \"a/b\"]", "line 2: `a/b` is neither `self`"),
        ("[[join]]", "missing field `namespaces`"),
    ];
    for (text, expected) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    let missing = Config::load(Path::new("/nonexistent/f.toml")).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/f.toml"));
}

#[test]
fn root_is_a_user() {
    assert_eq!(users("root"), Some(0));
    assert_eq!(users("no such user"), None);
}

#[test]
fn who_hides_his_cgroup_gains_nothing_by_it() {
    let rules = |first, second| {
        let text = format!(
            "[[rule]]\naction = \"{first}\"\ncgroup = \"/web\"\n[[rule]]\naction = \"{second}\"\nports = \"1-65535\""
        );
        Config::parse(&text, &|_| None).unwrap().rules
    };
    let unknown = Who { uid: 7, cgroup: None };
    assert!(!rules("deny", "allow").allow(&unknown, Call::Bind, 80));
    assert!(!rules("allow", "deny").allow(&unknown, Call::Bind, 80));
    let web = Who { uid: 7, cgroup: Some("/web/inner") };
    assert!(rules("allow", "deny").allow(&web, Call::Bind, 80));
    assert!(rules("deny", "allow").allow(&Who { uid: 7, cgroup: Some("/webserver") }, Call::Bind, 80));
}
