//! Small scopes of the protocol, explored exhaustively: the real machines hold in all of them, and deliberately broken
//! variants are found out.

mod broken;
mod sound;
