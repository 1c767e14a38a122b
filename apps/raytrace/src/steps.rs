//! The same as plain calls: the client asks each part in turn, and gets back what goes on elsewhere.

use crate::hops::{Probe, breathe};
use crate::part::Onward;
use crate::path::{Job, Path, Shadow};
use crate::server::{RAYS_IN_A_ROW, Server, check_count, check_job};
use wallaby::Status;

/// Plain calls.
#[wallaby::service(package = "raytrace")]
pub trait Steps {
    /// Follows rays as far as they go at this part.
    async fn advance(job: Job, paths: Vec<Path>, shadows: Vec<Shadow>) -> Onward;
    /// Looks for nearest hits as far as that goes at this part.
    async fn search(probes: Vec<Probe>) -> Vec<Probe>;
}

#[wallaby::serve]
impl Steps for Server {
    async fn advance(
        &self,
        job: Job,
        paths: Vec<Path>,
        shadows: Vec<Shadow>,
    ) -> Result<Onward, Status> {
        check_count(paths.len().saturating_add(shadows.len()))?;
        check_job(&job)?;
        let loaded = self.loaded()?;
        let (world, part) = (&loaded.world, &loaded.part);
        let mut onward = Onward::default();
        for (number, some) in paths.chunks(RAYS_IN_A_ROW).enumerate() {
            breathe(number).await;
            part.advance(world, &job, some.iter().copied(), [], &mut onward)?;
        }
        part.advance(world, &job, [], shadows, &mut onward)?;
        onward.join();
        Ok(onward)
    }

    async fn search(&self, mut probes: Vec<Probe>) -> Result<Vec<Probe>, Status> {
        check_count(probes.len())?;
        let loaded = self.loaded()?;
        for probe in &mut probes {
            loaded.part.follow(&mut probe.search, &loaded.world.map);
        }
        Ok(probes)
    }
}
