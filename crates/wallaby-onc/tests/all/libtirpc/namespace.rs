//! A network of a test's own: port 111, which libtirpc does not let anybody choose, is free there.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::tools::{said, skip};

const ENTERED: &str = "WALLABY_TEST_NAMESPACE";

/// Whether this process is in the network of a test.
pub(crate) fn is_inside() -> bool {
    env::var_os(ENTERED).is_some()
}

/// Whether this is the test's own network. If not, the test is run again in one, and that was all of it.
///
/// # Panics
/// The test has failed there.
pub(crate) fn is_entered(test: &str) -> bool {
    if is_inside() {
        furnish();
        return true;
    }
    let enter = || {
        let mut unshare = Command::new("unshare");
        if fs::metadata("/proc/self")
            .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) != 0)
        {
            unshare.args(["--user", "--map-root-user"]);
        }
        // What is started in there ends with the test.
        unshare.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--"]);
        unshare.stdin(Stdio::null());
        unshare
    };
    let able = enter()
        .args(["sh", "-c", "ip link set lo up && mount -t tmpfs tmpfs /run"])
        .output();
    match able {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let why = said(&output);
            skip(&format!(
                "{test}: no network namespace can be made here: {why}"
            ));
            return false;
        }
        Err(error) => {
            skip(&format!(
                "{test}: no unshare, which makes network namespaces: {error}"
            ));
            return false;
        }
    }
    let exe = env::current_exe().expect("this program has a path");
    let output = enter()
        .arg(exe)
        .args(["--exact", &format!("libtirpc::{test}"), "--nocapture"])
        .env(ENTERED, "1")
        .output();
    let output = output.expect("it ran before");
    let text = said(&output);
    let has_passed = output.status.success() && text.contains("1 passed");
    assert!(has_passed, "in its own network:\n{text}");
    for why in text
        .lines()
        .filter_map(|line| line.strip_prefix("SKIPPED: "))
    {
        skip(why);
    }
    false
}

fn sh(script: &str) {
    let output = Command::new("sh").args(["-c", script]).output();
    let output = output.expect("there is a shell");
    assert!(output.status.success(), "{script}: {}", said(&output));
}

/// What rpcbind needs: a network, a folder for its socket and locks, and the user that it becomes.
fn furnish() {
    sh("ip link set lo up && mount -t tmpfs tmpfs /run");
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !users.lines().any(|line| line.starts_with("_rpc:")) {
        let users = format!("{users}_rpc:x:65533:65534::/run/rpcbind:/usr/sbin/nologin\n");
        fs::write("/run/passwd", users).expect("it is a folder of our own");
        sh("mount --bind /run/passwd /etc/passwd");
    }
    assert!(Path::new("/run").is_dir());
}
