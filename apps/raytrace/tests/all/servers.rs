//! What servers refuse, what happens when one is lost, and how many messages a path takes.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::common::{cluster, settings, staged};
use glam::DVec3;
use std::collections::BTreeMap;
use std::time::Duration;
use wallaby::{Code, Endpoint, Limits};
use wallaby_raytrace::client::Client;
use wallaby_raytrace::hops::hops;
use wallaby_raytrace::hosting::hosting;
use wallaby_raytrace::path::Path;
use wallaby_raytrace::picture::Picture;
use wallaby_raytrace::ray::Ray;
use wallaby_raytrace::render::{dpc, rpc};
use wallaby_raytrace::search::{Hit, Step};
use wallaby_raytrace::server::{MOST_RAYS, Server};
use wallaby_raytrace::steps::steps;

fn nowhere() -> Path {
    let ray = Ray {
        origin: DVec3::splat(100.0),
        direction: DVec3::Y,
    };
    Path::new(0, 0, ray)
}

#[tokio::test]
async fn servers_refuse_what_cannot_be() {
    let (world, parts) = staged("box:500", 2);
    let cluster = cluster(&world, parts.clone()).await;
    let server = || steps::within(cluster.client().server(0));
    let job = settings(1, 1, 1, 1).job;
    let refused = |error: wallaby::CallError, words: &str| {
        let status = error.status().unwrap();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(words), "{status}");
    };

    let many = vec![nowhere(); MOST_RAYS + 1];
    let error = server()
        .advance(job, many.clone(), Vec::new())
        .await
        .unwrap_err();
    refused(error, "65537 rays in a request: at most 65536");
    let mut call = hops::within(cluster.client().server(0)).bounce(job, many);
    refused(call.next().await.unwrap().unwrap_err(), "at most 65536");

    let mut endless = job;
    endless.bounces = u16::MAX;
    let mut call = hops::within(cluster.client().server(0)).bounce(endless, vec![nowhere()]);
    refused(
        call.next().await.unwrap().unwrap_err(),
        "65535 bounces: at most 256",
    );

    // A hit that nobody has seen.
    let mut path = nowhere();
    path.search.best = Some(Hit {
        distance: 1.0,
        triangle: 3,
        part: 0,
        place: 1_000_000,
    });
    let error = server()
        .advance(job, vec![path], Vec::new())
        .await
        .unwrap_err();
    refused(error, "no triangle at place 1000000");

    // Parts that do not exist, and numbers that are none.
    let mut path = nowhere();
    path.search.best = Some(Hit {
        distance: 1.0,
        triangle: 3,
        part: 77,
        place: 0,
    });
    let mut call = hops::within(cluster.client().server(0)).bounce(job, vec![path]);
    refused(
        call.next().await.unwrap().unwrap_err(),
        "there is no part 77",
    );
    let mut path = nowhere();
    path.search.last = Some(77);
    path.search.ray.direction = DVec3::NAN;
    path.throughput = DVec3::NAN;
    let onward = server().advance(job, vec![path], Vec::new()).await.unwrap();
    assert_eq!((onward.light, onward.paths), Default::default());

    // A second scene.
    let host = hosting::within(cluster.client().server(0));
    let again = host
        .begin(0, 1, world.clone(), cluster.client().servers().to_vec())
        .await;
    assert_eq!(
        again.unwrap_err().status().unwrap().code(),
        Code::AlreadyExists
    );
    cluster.end();
}

#[tokio::test]
async fn a_server_without_a_scene_says_so_and_takes_only_what_was_announced() {
    let endpoint = Server::endpoint("mem://empty", Duration::ZERO)
        .await
        .unwrap();
    Server::serve(&endpoint).unwrap();
    let servers = vec![endpoint.address().unwrap().clone()];
    let client = Client::new(Endpoint::client().unwrap(), servers.clone()).unwrap();
    let host = || hosting::within(client.server(0));
    let code =
        |result: Result<(), wallaby::CallError>| result.unwrap_err().status().unwrap().code();
    assert_eq!(
        code(
            steps::within(client.server(0))
                .search(Vec::new())
                .await
                .map(drop)
        ),
        Code::FailedPrecondition
    );
    assert_eq!(code(host().add(Vec::new()).await), Code::FailedPrecondition);
    assert_eq!(code(host().ready().await), Code::FailedPrecondition);
    let (world, parts) = staged("box:500", 1);
    // A part that the scene does not have.
    assert_eq!(
        code(host().begin(1, 5, world.clone(), servers.clone()).await),
        Code::InvalidArgument
    );
    host().begin(0, 5, world, servers).await.unwrap();
    host().add(parts[0][..3].to_vec()).await.unwrap();
    assert_eq!(code(host().ready().await), Code::FailedPrecondition);
    assert_eq!(
        code(host().add(parts[0][..3].to_vec()).await),
        Code::InvalidArgument
    );
    host().add(parts[0][..2].to_vec()).await.unwrap();
    host().ready().await.unwrap();
    endpoint.close();
}

#[tokio::test]
async fn a_server_that_is_lost_is_named() {
    let (world, parts) = staged("box:2000", 4);
    let cluster = cluster(&world, parts).await;
    // More than can be done before: the server goes when the first light has come.
    let settings = settings(64, 48, 10_000, 256);
    let mut killed = false;
    let mut watch = |_: &Picture| {
        if !std::mem::replace(&mut killed, true) {
            cluster.kill(2);
        }
    };
    let lost = dpc::render(cluster.client(), &world, &settings, &mut watch)
        .await
        .unwrap_err();
    assert_eq!(lost.server, Some(3), "{lost}");
    assert!(lost.to_string().contains("server 3 (mem://"), "{lost}");
    let lost = rpc::render(cluster.client(), &world, &settings, &mut |_| {}).await;
    assert_eq!(lost.unwrap_err().server, Some(3));
    cluster.end();
}

/// Figure 6.3 of the thesis: one request for each hop, answers only for the client.
#[tokio::test]
async fn a_path_takes_one_message_a_hop_and_one_for_each_light() {
    let (world, parts) = staged("box:4000", 4);
    let cluster = cluster(&world, parts).await;
    let client = cluster.client();
    let settings = settings(40, 30, 1, 64);
    let mut checked = 0;
    for path in settings.camera_paths(&world).step_by(61) {
        let Step::Visit(part) = path.search.step(&world.map) else {
            continue;
        };
        let (_, trace) = dpc::explain(client, &world, settings.job, path)
            .await
            .unwrap();
        let trace = trace.unwrap();
        let calls = rpc::explain(client, &world, settings.job, path)
            .await
            .unwrap();
        assert_eq!(trace.hops.len() as u64, calls, "a hop for each plain call");
        let answers: u64 = trace.hops.iter().map(|hop| hop.responses).sum();

        let before = cluster.messages();
        dpc::trace(client.clone(), settings.job, part, vec![path])
            .await
            .unwrap();
        let between = cluster.messages();
        rpc::explain(client, &world, settings.job, path)
            .await
            .unwrap();
        let after = cluster.messages();
        let (by_hops, all_by_hops) = (between.0 - before.0, between.1 - before.1);
        let (by_calls, all_by_calls) = (after.0 - between.0, after.1 - between.1);
        // A branch that ends without light says so by a small message.
        assert!(
            by_hops > answers && all_by_hops > calls,
            "{by_hops}, {all_by_hops}"
        );
        assert!(
            all_by_hops <= 2 * calls + 2,
            "{all_by_hops} for {calls} hops"
        );
        assert!(
            all_by_calls >= 2 * calls && by_calls >= 2 * calls,
            "{by_calls}, {all_by_calls}"
        );
        assert!(by_hops <= by_calls, "{by_hops} and {by_calls}");
        checked += 1;
    }
    assert!(checked > 10);
    cluster.end();
}

/// A client has room for so many branches of a call: what needs more is traced in halves.
#[tokio::test]
async fn a_batch_whose_tree_grows_too_wide_is_halved() {
    let (world, parts) = staged("box:3000", 9);
    let cluster = cluster(&world, parts).await;
    let mut limits = Limits::default();
    // A call may know of 1,024 requests and of half of these: a tree that is only a little wider is there in no time.
    limits.branches = 2048;
    // It computes for seconds, and on a busy machine for longer.
    let (often, long) = (Duration::from_secs(60), Duration::from_secs(600));
    let endpoint = Endpoint::builder().listen("mem://wide").ping(often, long);
    let endpoint = endpoint.default_deadline(long).limits(limits);
    let endpoint = endpoint.bind().await.unwrap();
    let client = &Client::new(endpoint, cluster.client().servers().to_vec()).unwrap();
    let mut settings = settings(96, 96, 1, 1);
    settings.job.bounces = 12;
    let mut parts: BTreeMap<u16, Vec<Path>> = BTreeMap::new();
    for path in settings.camera_paths(&world) {
        if let Step::Visit(part) = path.search.step(&world.map) {
            parts.entry(part).or_default().push(path);
        }
    }
    let (part, mut paths) = parts
        .into_iter()
        .max_by_key(|(_, paths)| paths.len())
        .unwrap();
    paths.truncate(600);
    assert_eq!(paths.len(), 600);
    // Connects all who will talk to each other, before they are busy.
    let few = paths[..50].to_vec();
    let mut together = settings.job;
    together.batch = 65_536;
    dpc::trace(client.clone(), together, part, few)
        .await
        .unwrap();
    // One ray a message: more than three branches a path.
    let wide = dpc::trace(client.clone(), settings.job, part, paths.clone())
        .await
        .unwrap();
    let failed = client.endpoint().metrics().calls_failed;
    assert!(
        failed > 0,
        "the batch was not too wide: this test shows nothing"
    );
    let narrow = dpc::trace(client.clone(), together, part, paths)
        .await
        .unwrap();
    assert_eq!(client.endpoint().metrics().calls_failed, failed);
    assert!(wide == narrow);
    cluster.end();
}
