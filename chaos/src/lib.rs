//! Real processes under real faults, and their books compared afterwards.
//!
//! A *director* starts servers and clients as processes of their own, lets the clients make calls of many shapes, and
//! meanwhile kills, stops and restarts processes and cuts links between them. Servers write down each request that they
//! execute and each answer before they give it; clients write down how each call ended. Then the director compares:
//! nothing was executed twice, complete calls have exactly what was sent, failed ones name a server that really was hurt,
//! nothing fails where nothing is wrong, and no process keeps anything of what is over.
//!
//! | part | what it is |
//! |---|---|
//! | `churn` | rounds of load with faults, load without, and rest |
//! | `detect` | how long it takes until a call learns that its server is gone |
//! | `loss` | calls over a UDP network that loses, doubles, reorders and damages datagrams |
//! | `hostile` | honest clients and servers among peers that lie, and these peers |
//! | `cluster`, `child`, `network` | processes, and the links between them |
//! | `process`, `server`, `client`, `proxy` | what the processes do |
//! | `plan`, `journal`, `control`, `moment` | calls, books, and what processes tell each other, in one time |
//! | `harm`, `audit` | what was done to them, and what must be true all the same |
//! | `report` | what people and programs read of it |

mod audit;
mod child;
mod churn;
mod client;
mod cluster;
mod command;
mod control;
mod detect;
mod harm;
mod hostile;
mod journal;
mod loss;
mod moment;
mod network;
mod plan;
mod process;
mod proxy;
mod report;
mod server;

pub use command::{Command, Detect, Hostile, Loss, Run};
pub use network::Choice;
