//! Thousands of calls at a time.

use std::time::Duration;

use crate::common::{Net, at, client, failure, patience, service, work};
use wallaby::{Failure, Many, Request};

/// Never reached.
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn each_of_thousands_of_calls_fails_at_its_own_deadline() {
    let times = |index: u64| match index % 3 {
        0 => LONG,
        _ => Duration::from_millis(index * 7919 % 97 + 1),
    };
    let _alone = crate::ALONE.lock().await;
    patience(async {
        let hang = |request: Request<Many<_>>, (_,)| async move {
            request.cancelled().await;
            Ok(())
        };
        let net = Net::mem();
        let server = net.serve(service().method(&work::MANY, hang)).await;
        let client = client();
        // More than are looked through in one go, in no order.
        let make = |index| {
            let client = work::at(&client, at(&server)).deadline(times(index));
            (index, client.many(String::new()))
        };
        let calls: Vec<_> = (0..4_000).map(make).collect();
        let mut living = Vec::new();
        for (index, mut call) in calls {
            if times(index) == LONG {
                living.push(call);
                continue;
            }
            let end = call.next().await.expect("an error");
            let Failure::Deadline { after, .. } = failure(end) else {
                panic!("another failure: {:?}", call.outcome())
            };
            assert_eq!(after, times(index));
        }
        assert!(living.iter().all(|call| call.outcome().is_none()));
        let failed = 4_000 - living.len() as u64;
        assert_eq!(client.metrics().calls_failed, failed);
    })
    .await;
}
