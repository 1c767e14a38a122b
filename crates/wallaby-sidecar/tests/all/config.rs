//! What files say, and what is wrong with them.

use wallaby_sidecar::config::Allow;
use wallaby_sidecar::{Config, Sidecar, StartError};

const HTTP: &str = "[[http]]\nname = \"Files\"\nserver = \"http://127.0.0.1:8000\"\n";

#[test]
fn a_file_says_what_a_sidecar_is_told() {
    let text = format!(
        "listen = [\"tcp://127.0.0.1:0\", \"unix:///tmp/x\"]\nhealth_every = \"1m 30s\"\n{HTTP}headers = [\"Authorization\"]\n\
         h2 = true\npaths = [\"/a/\"]\nhealth = \"/up?x\"\nlimits = {{ timeout = \"250ms\", at_once = 2, answer = 10 }}\n"
    );
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.listen.len(), 2);
    assert_eq!(config.allow, Allow::Local);
    assert!(config.chains);
    assert_eq!(config.health_every.as_secs(), 90);
    let http = &config.http[0];
    assert_eq!(http.name.get_ref().as_str(), "Files");
    assert_eq!(http.server.to_string(), "http://127.0.0.1:8000");
    assert_eq!(http.headers, ["authorization"]);
    assert_eq!((http.h2, http.limits.at_once), (true, 2));
    let names = "listen = [\"tls://0.0.0.0:1\"]\nallow = { names = [\"a.example\"] }\n\
                 tls = { roots = \"a\", certificate = \"b\", key = \"c\" }\n";
    let config = Config::parse(names).unwrap();
    assert_eq!(config.allow, Allow::Names(vec!["a.example".into()]));
    for local in [
        "tcp://[::1]:1",
        "tcp://localhost:1",
        "shm:///tmp/x",
        "udp://127.0.0.2:1",
    ] {
        Config::parse(&format!("listen = [\"{local}\"]")).unwrap();
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_by_line_and_key() {
    let check = |text: &str, line: usize, has: &[&str]| {
        let error = Config::parse(text).unwrap_err();
        let told = error.to_string();
        assert!(
            told.starts_with(&format!("line {line} (")),
            "{text}: {told}"
        );
        for words in has {
            assert!(told.contains(words), "{text}: {told}");
        }
    };
    let with = |key: &str| format!("listen = [\"tcp://127.0.0.1:0\"]\n{HTTP}{key}\n");
    check(
        "listen = [\"tcp://127.0.0.1:0\"]\nlisen = 1",
        2,
        &["lisen", "unknown field"],
    );
    check("", 1, &["missing field `listen`"]);
    check("\n\nlisten = []", 3, &["listen", "at least one"]);
    check(
        "listen = [\n  \"tcp://127.0.0.1:0\",\n  \"tcp://nowhere\"\n]",
        1,
        &["listen", "tcp://nowhere", "port"],
    );
    check(
        "listen = [\"tcp://0.0.0.0:0\"]",
        1,
        &["listen", "tcp://0.0.0.0:0", "allow"],
    );
    check(
        "listen = [\"tcp://example.org:4000\"]",
        1,
        &["listen", "allow"],
    );
    check(
        "listen = [\"tcp://0.0.0.0:0\"]\nallow = \"cluster\"",
        2,
        &["allow", "cluster_key"],
    );
    check(
        "listen = [\"tcp://127.0.0.1:0\"]\ncode = { allow = \"cluster\" }",
        2,
        &["code", "cluster_key"],
    );
    check(
        "listen = [\"tcp://0.0.0.0:0\"]\nallow = \"all\"",
        2,
        &["allow", "anybody"],
    );
    check(
        "listen = [\"tcp://0.0.0.0:0\"]\nallow = { names = [\"a\"] }",
        2,
        &["allow", "tls://"],
    );
    check(
        "listen = [\"tls://127.0.0.1:0\"]",
        1,
        &["listen", "roots, certificate and key"],
    );
    for server in [
        "http://h:99999",
        "http://h:",
        "http://[::1]:",
        "http://h:8x",
    ] {
        let other = format!("[[http]]\nname = \"Other\"\nserver = \"{server}\"");
        check(&with(&other), 7, &["server", "http://HOST:PORT"]);
    }
    check(&with("servr = 1"), 5, &["servr", "unknown field"]);
    check(&with("h2 = 1"), 5, &["h2", "expected a boolean"]);
    check(
        &with("headers = [\"host\"]"),
        5,
        &["headers", "host", "cannot be passed on"],
    );
    check(&with("headers = [\"a b\"]"), 5, &["headers", "header"]);
    check(&with("paths = [\"a\"]"), 5, &["paths", "begins with /"]);
    check(
        &with("health = \"/../x\""),
        5,
        &["health", "leads elsewhere"],
    );
    check(
        &with("limits = { timeout = \"5\" }"),
        5,
        &["timeout", "time unit"],
    );
    check(
        &with("limits = { timeout = \"0s\" }"),
        5,
        &["timeout", "above 0"],
    );
    check(
        &with("limits = { at_once = 0 }"),
        5,
        &["at_once", "expected 1 to 65536"],
    );
    check(
        &with("limits = { answer = 20000000 }"),
        5,
        &["answer", "expected 1 to 16777216"],
    );
    check(
        &with("[[http]]\nname = \"Files\"\nserver = \"http://a\""),
        6,
        &["Files", "already"],
    );
    let server = |server: &str| {
        let text = format!(
            "listen = [\"tcp://127.0.0.1:0\"]\n[[http]]\nname = \"A\"\nserver = \"{server}\""
        );
        check(&text, 4, &["server", "expected http://"]);
    };
    for wrong in [
        "https://a",
        "127.0.0.1:80",
        "http://a/b",
        "http://u@a",
        "http://",
        "ftp://a",
        "http://a?b",
    ] {
        server(wrong);
    }
    let no_chains =
        "listen = [\"tcp://127.0.0.1:0\"]\nchains = false\ncode = { allow = \"callers\" }";
    check(no_chains, 2, &["chains", "switched off"]);
    let code = "listen = [\"tcp://127.0.0.1:0\"]\n[code]\nallow = \"all\"";
    check(code, 3, &["allow", "callers"]);
    let grpc = |key: &str, line: usize, has: &[&str]| {
        let text = format!(
            "listen = [\"tcp://127.0.0.1:0\"]\n[[grpc]]\nserver = \"http://a:1\"\nservices = [\"a.B\"]\n{key}\n"
        );
        check(&text, line, has);
    };
    grpc(
        "metadata = [\"grpc-timeout\"]",
        5,
        &["metadata", "gRPC's own"],
    );
    grpc(
        "metadata = [\"te\"]",
        5,
        &["metadata", "cannot be passed on"],
    );
    grpc(
        "[[grpc]]\nserver = \"http://a:2\"\nservices = [\"c.D\", \"a.B\"]",
        7,
        &["services", "a.B already"],
    );
    let onc = |server: &str, has: &str| {
        let text = format!(
            "listen = [\"tcp://127.0.0.1:0\"]\n[[onc]]\nserver = \"{server}\"\ninterface = \"x\""
        );
        check(&text, 3, &["server", has]);
    };
    onc("http://127.0.0.1:1", "expected tcp://IP:PORT");
    onc("tcp://host.example:1", "expected tcp://IP:PORT");
    let name = "listen = [\"tcp://127.0.0.1:0\"]\n[[http]]\nname = \"A/b\"\nserver = \"http://a\"";
    check(name, 3, &["name", "letters, digits"]);
    let many: String = (0..65)
        .map(|number| format!("[[http]]\nname = \"A{number}\"\nserver = \"http://a\"\n"))
        .collect();
    check(
        &format!("listen = [\"tcp://127.0.0.1:0\"]\n{many}"),
        196,
        &["65 servers", "64"],
    );
}

#[tokio::test]
async fn files_that_are_named_and_missing_are_named_again() {
    let text =
        "listen = [\"tcp://127.0.0.1:0\"]\nallow = \"cluster\"\ncluster_key = \"/nowhere/key\"";
    let error = Sidecar::start(Config::parse(text).unwrap())
        .await
        .unwrap_err();
    assert!(matches!(error, StartError::File { .. }));
    assert!(error.to_string().starts_with("/nowhere/key: "), "{error}");
    let interface = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs3.x");
    for (interface, programs, words) in [
        ("/nowhere/nfs.x", "", "/nowhere/nfs.x"),
        (
            interface,
            "programs = [\"NFS\"]",
            "nfs3.x has no program NFS",
        ),
    ] {
        let text = format!(
            "listen = [\"tcp://127.0.0.1:0\"]\n[[onc]]\nserver = \"tcp://127.0.0.1:1\"\ninterface = \"{interface}\"\n{programs}"
        );
        let error = Sidecar::start(Config::parse(&text).unwrap()).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
