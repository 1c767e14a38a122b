//! Calls over a chain of polling servers in one thread, over and over: for counting the instructions of the hot path.
//!
//! `polling_path CALLS TRANSPORT SERVERS` makes so many calls of 100 bytes over `udp`, `tcp`, `unix` or `shm` that each server
//! forwards to the next and the last one answers. All endpoints are turned one after the other. With `AT-A-TIME` as a further
//! argument so many calls are under way.

use std::env::args;

use bytes::Bytes;
use wallaby::codec::Raw;
use wallaby::polling::{CallOptions, Endpoint, Event, Wait};
use wallaby::{Address, Method, One};

static PASS: Method<(Bytes,), One<Bytes>, Raw> = Method::new("example.Chain/pass");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "usage: polling_path CALLS udp|tcp|unix|shm SERVERS [AT-A-TIME]";
    let calls: u32 = args().nth(1).ok_or(usage)?.parse()?;
    let transport = args().nth(2).ok_or(usage)?;
    let servers: u32 = args().nth(3).ok_or(usage)?.parse()?;
    let at_a_time: u32 = args().nth(4).map_or(Ok(1), |number| number.parse())?;
    let place = |number: u32| match &*transport {
        "unix" | "shm" => {
            let name = format!("wallaby-path-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            format!("{transport}://{}", path.display())
        }
        network => format!("{network}://127.0.0.1:0"),
    };

    let mut chain = Vec::new();
    let mut next: Option<Address> = None;
    for number in 0..servers {
        let mut server = Endpoint::bind(&place(number))?;
        let onward = next.clone();
        server.serve(&PASS, move |request, (payload,)| match &onward {
            Some(next) => Ok(request.forward(next.clone(), PASS.target((payload,)))?),
            None => Ok(request.respond(&payload)?),
        })?;
        next = Some(server.address());
        chain.push(server);
    }
    chain.reverse();
    let first = next.ok_or(usage)?;
    let mut client = Endpoint::bind(&place(servers))?;
    let payload = Bytes::from(vec![7; 100]);
    let options = CallOptions::default();
    let (mut begun, mut done) = (0, 0);
    while done < calls {
        while begun < calls && begun - done < at_a_time {
            client.call(first.clone(), PASS.target((payload.clone(),)), &options)?;
            begun += 1;
        }
        client.turn(Wait::Not)?;
        for server in &mut chain {
            server.turn(Wait::Not)?;
        }
        client.turn(Wait::Not)?;
        while let Some(event) = client.next_event() {
            match event {
                Event::Answer(_) => {}
                Event::Complete { statuses: 0, .. } => done += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
    }
    Ok(())
}
