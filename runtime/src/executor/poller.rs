//! The poller: the task of an executor that runs a shard. It takes the shard's turns while there is work, and sleeps
//! when the shard may, so that an idle service uses no CPU.
//!
//! Three facts of glommio 0.9 shape it. A task that is always runnable must share the clients' task queue and yield by
//! waking itself. If the preemption timer fires before the first task of a scheduling round, the executor goes to sleep
//! although tasks are runnable: `run_executor` sees to the executors that it runs, and the heartbeat below helps
//! others. And tasks that an executor ends with are leaked, so the poller of a closed shard must not be one of them: it
//! would keep the device and its buffers. So it tells the shard when it steps aside for the reactor, closing waits
//! until it is back, and when the last handle is dropped it does not step aside again, and comes to its end.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::future::select;
use glommio::timer::Timer;

use super::reactor::Reactor;
use super::{Ending, HEARTBEAT, is_watched, tell_end};
use crate::clock::Clock;
use crate::engine::Device;
use crate::shard::{Driver, Membership, Turn};

/// A heartbeat whose time came in the same round as the lost wake-up is lost with it. This is the timer that is left
/// then: renewed with every heartbeat, it is never due unless there was none for as long.
const BACKSTOP: Duration = Duration::from_secs(1);

/// Runs a shard on the executor of this thread, until it is over. The reactor gets its turn every `reactor_ns`.
pub(crate) fn run_shard<D: Device<Host = Clock>>(driver: Driver<D>, reactor_ns: u64) {
    let membership = Arc::downgrade(driver.membership());
    tell_end(membership);
    let polling = async move {
        let heart = (!is_watched()).then(|| glommio::spawn_local(heartbeat()));
        poll(driver, Reactor::new(reactor_ns)).await;
        if let Some(heart) = heart {
            heart.cancel().await;
        }
    };
    glommio::spawn_local(polling).detach();
}

impl Ending for Membership {
    fn executor_ended(&self) {
        self.lose();
    }
}

async fn heartbeat() {
    let mut backstop = Timer::new(BACKSTOP);
    loop {
        select(Timer::new(HEARTBEAT), &mut backstop).await;
        backstop.reset(BACKSTOP);
    }
}

async fn poll<D: Device<Host = Clock>>(mut driver: Driver<D>, mut reactor: Reactor) {
    loop {
        match driver.turn() {
            Turn::Over => return,
            Turn::Sleep { until_ns } if sleep(&mut driver, until_ns).await => {
                let now = driver.host().now();
                reactor.ran(now, now);
                continue;
            }
            Turn::Sleep { .. } | Turn::Idle | Turn::Busy => {}
        }
        if reactor.is_due(driver.host()) && driver.is_held() {
            driver.step_aside();
            reactor.run(driver.host()).await;
            driver.come_back();
        } else {
            yield_now().await;
        }
    }
}

/// Sleeps until work arrives, or until that moment of the shard's clock. False if there was no sleep.
async fn sleep<D: Device<Host = Clock>>(driver: &mut Driver<D>, until_ns: Option<u64>) -> bool {
    // The first poll announces the sleep; at every other one the shard was woken.
    let asleep = Cell::new(None);
    let now = driver.host().now();
    let woken = poll_fn(|cx| match asleep.get() {
        Some(_) => Poll::Ready(()),
        None => {
            let may_sleep = driver.fall_asleep(cx.waker());
            asleep.set(Some(may_sleep));
            if may_sleep { Poll::Pending } else { Poll::Ready(()) }
        }
    });
    match until_ns {
        None => woken.await,
        Some(until) => {
            let timer = glommio::timer::sleep(Duration::from_nanos(until.saturating_sub(now)));
            select(pin!(woken), pin!(timer)).await;
        }
    }
    driver.awaken();
    asleep.get() == Some(true)
}

/// Lets every other runnable task of the queue run once.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
