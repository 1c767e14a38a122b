//! The completion oracle: trees of requests run through the real server half, their messages delivered to the real
//! client half in any order, and completion known from exact fractional weights.
//!
//! | file | what is in it |
//! |---|---|
//! | `plan` | what every handler of a tree does; random plans |
//! | `enumerate` | all plans of a size |
//! | `run` | a plan through the server half: the messages that the initiator will get |
//! | `weights` | how much of a call has arrived, exactly |
//! | `deliver` | delivery, and what must hold after each step |
//! | `random`, `exhaustive` | the tests |

mod deliver;
mod enumerate;
mod exhaustive;
mod plan;
mod random;
mod run;
mod weights;
