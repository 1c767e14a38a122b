//! A path tracer whose scene is split over servers: rays hop from part to part, paths from bounce to bounce, and their
//! light comes straight to the client.
//!
//! To see how to build with Wallaby, read [`hops`] first: the picture as multi-hop calls. Beside it, [`steps`] is the same
//! by plain calls. What happens to a ray at a server is in [`part`], what becomes of a path where it hits something in
//! [`path`]. The client's side is [`render`].
//!
//! | part | what it is |
//! |---|---|
//! | [`ray`], [`triangle`], [`hierarchy`] | what a ray hits, with the same result however triangles are put into boxes |
//! | [`search`], [`part`], [`world`] | a scene in parts, and the way of a ray through them |
//! | [`path`], [`material`], [`light`], [`chance`] | light: how it is scattered, where it comes from |
//! | [`camera`], [`picture`], [`mod@file`] | how it is seen |
//! | [`scene`] | files, a generated scene, the stage around them |
//! | [`server`], [`hops`], [`steps`], [`hosting`] | what a server offers |
//! | [`client`], [`render`], [`nearest`], [`lost`] | who asks, for pictures and for single rays; what went wrong |
//! | [`process`] | servers as processes of their own |
//! | [`command`] | what a user sees |

pub mod camera;
pub mod chance;
pub mod client;
pub mod command;
pub mod file;
pub mod hierarchy;
pub mod hops;
pub mod hosting;
pub mod light;
pub mod lost;
pub mod material;
pub mod nearest;
pub mod part;
pub mod path;
pub mod picture;
pub mod process;
pub mod ray;
pub mod render;
pub mod scene;
pub mod search;
pub mod server;
pub mod steps;
pub mod triangle;
pub mod world;
