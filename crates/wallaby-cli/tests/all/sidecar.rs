//! `wallaby sidecar` as its users run it.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output};

use wallaby_program::testing::{signal, start, stdout};

/// A sidecar, which does not outlive a test that fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // mostly it has ended
    }
}

fn wallaby() -> Command {
    Command::new(env!("CARGO_BIN_EXE_wallaby"))
}

/// A file for a sidecar before this server, at a socket in a folder.
fn file(folder: &tempfile::TempDir, server: &str) -> (String, String) {
    let socket = format!("unix://{}", folder.path().join("sidecar").display());
    let file = folder.path().join("sidecar.toml");
    let text =
        format!("listen = [\"{socket}\"]\n\n[[http]]\nname = \"Files\"\nserver = \"{server}\"\n");
    std::fs::write(&file, text).unwrap();
    (file.display().to_string(), socket)
}

/// Answers each request with its own first line.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes[..read]);
        let line = text.lines().next().unwrap_or_default();
        let length = line.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{line}"
        );
        let _ = stream.write_all(answer.as_bytes()); // who only looks whether it is there leaves
    }
}

#[test]
fn a_server_that_knows_nothing_of_it_is_called_and_the_sidecar_ends_when_it_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || serve(&listener));
    let folder = tempfile::tempdir().unwrap();
    let (file, socket) = file(&folder, &format!("http://{at}"));
    let mut sidecar = Running(start(
        wallaby().args(["sidecar", "--config", &file]),
        "sidecar listens at unix://",
    ));
    let run = |arguments: &[&str]| wallaby().args(arguments).output().unwrap();
    let list = stdout(&run(&["list", &socket, "http."]));
    assert!(list.contains("get(String) -> Vec<u8>"), "{list}");
    assert!(list.contains("send(Asked) -> Answered"), "{list}");
    let asked = r#"{"method":"GET","path":"/a?b","headers":[],"body":[]}"#;
    let answered = stdout(&run(&["call", &socket, "http.Files/send", asked]));
    assert!(answered.starts_with("{\"status\":200,"), "{answered}");
    let refused = run(&["call", &socket, "http.Files/get", "\"/../a\""]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    signal("TERM", sidecar.0.id());
    assert!(sidecar.0.wait().unwrap().success());
}

#[test]
fn a_file_is_checked_and_its_mistakes_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let check = |server: &str| -> (Output, String) {
        let (file, _) = file(&folder, server);
        (
            wallaby()
                .args(["sidecar", "--check", "--config", &file])
                .output()
                .unwrap(),
            file,
        )
    };
    assert_eq!(stdout(&check("http://127.0.0.1:8000").0), "it is right\n");
    let (wrong, file) = check("127.0.0.1:8000");
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    let told = String::from_utf8(wrong.stderr).unwrap();
    let expected = format!("error: {file}: line 5 (server = \"127.0.0.1:8000\"): ");
    assert!(
        told.starts_with(&expected) && told.contains("expected http://HOST:PORT"),
        "{told}"
    );
}
