//! The poller: the one task of a shard that makes everything move. It spins while there is work, and parks when there
//! has been none for a while, so that an idle service uses no CPU.
//!
//! Three facts of glommio 0.9 shape it. A task that is always runnable must share the clients' task
//! queue and yield by waking itself. And if the preemption timer fires before the first task of a scheduling round, the
//! executor goes to sleep although tasks are runnable: [`crate::executor`] sees to those that it runs, and the
//! heartbeat below helps others. And tasks that an executor ends with are leaked, so the poller of a closed shard must
//! not be one of them.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{Either, select};
use glommio::timer::Timer;
use smallvec::SmallVec;

use super::Core;
use super::reactor::Reactor;
use crate::engine::Device;
use crate::executor::{HEARTBEAT, is_watched};
use crate::message::{Envelope, ShardId};
use crate::waiter::Waiter;

/// Messages taken from each ring in one turn.
const MESSAGES_PER_TURN: usize = 256;
/// A heartbeat whose time came in the same round as the lost wake-up is lost with it. This is the timer that is left
/// then: renewed with every heartbeat, it is never due unless there was none for as long.
const BACKSTOP: Duration = Duration::from_secs(1);
/// How many times longer a poller spins while chains are in flight: one that sleeps sees their completion late, and a
/// READ that seems to have taken long vouches for less ([`crate::verbs::Completion::span_ns`]).
const SPINS_IN_FLIGHT: u64 = 20;
/// The longest sleep while chains are in flight: then devices look whether those who should complete them still exist.
const LOOK_AFTER_NS: u64 = 100_000_000;
/// How often a shard that is never idle looks after actors that are to be removed.
const TURNS_PER_VISIT: u64 = 64;
/// A sleep ends this much before the deadline it is for, the rest is spun: waking takes its time.
const WAKE_EARLY_NS: u64 = 100_000;

pub(super) fn start<D: Device>(core: &Rc<Core<D>>) {
    let core = Rc::clone(core);
    let polling = async {
        let heart = (!is_watched()).then(|| glommio::spawn_local(heartbeat()));
        poll(core).await;
        if let Some(heart) = heart {
            heart.cancel().await;
        }
    };
    glommio::spawn_local(polling).detach();
}

async fn heartbeat() {
    let mut backstop = Timer::new(BACKSTOP);
    loop {
        select(Timer::new(HEARTBEAT), &mut backstop).await;
        backstop.reset(BACKSTOP);
    }
}

/// Waits until the poller is back, if it has stepped aside: the executor may end as soon as its shard is closed, and
/// glommio leaks the tasks that it ends with. This one would keep the device and its buffers. When nobody else holds
/// its shard any more it does not step aside again, and so comes to its end.
pub(super) async fn is_back<D: Device>(core: &Core<D>) {
    poll_fn(|cx| {
        if !core.aside.get() {
            return Poll::Ready(());
        }
        core.closer.set(Some(cx.waker().clone()));
        Poll::Pending
    })
    .await;
}

/// Steps aside for the executor's reactor.
async fn step_aside<D: Device>(core: &Core<D>, reactor: &mut Reactor) {
    core.aside.set(true);
    reactor.run(&core.clock).await;
    core.aside.set(false);
    if let Some(closer) = core.closer.take() {
        closer.wake();
    }
}

async fn poll<D: Device>(core: Rc<Core<D>>) {
    let mut inbox = Vec::with_capacity(MESSAGES_PER_TURN);
    let mut idle_since = None;
    let mut reactor = Reactor::new(core.reactor_ns);
    for turn in 0_u64.. {
        let moved = core.turn(&mut inbox);
        if core.port_book.has_leaving() && (!moved || turn.is_multiple_of(TURNS_PER_VISIT)) {
            core.port_book.visit(core.id, &core.ports);
        }
        if moved {
            idle_since = None;
        } else if core.is_quiet() {
            // Clients run to their end, also those that hold no handle, and chains until they are executed.
            if Rc::strong_count(&core) == 1 && core.clients.alive() == 0 && core.in_flight() == 0 {
                return;
            }
            let now = core.clock.now();
            let since = *idle_since.get_or_insert(now);
            let next = core.timers.next().map(|at| at.saturating_sub(now));
            let look = (core.in_flight() > 0).then_some(LOOK_AFTER_NS);
            let next = next.into_iter().chain(look).min();
            let spins = if core.in_flight() > 0 { SPINS_IN_FLIGHT } else { 1 };
            if now.saturating_sub(since) >= spins * core.spin_ns
                && next.is_none_or(|ns| ns > 2 * WAKE_EARLY_NS)
            {
                idle_since = None;
                if park(&core, next).await {
                    reactor.ran(core.clock.now(), core.clock.now());
                    continue;
                }
            }
        }
        if reactor.is_due(&core.clock) && Rc::strong_count(&core) > 1 {
            step_aside(&core, &mut reactor).await;
        } else {
            yield_now().await;
        }
    }
}

/// Sleeps until work arrives, or until shortly before the next deadline. False if there was no sleep.
async fn park<D: Device>(core: &Core<D>, next_ns: Option<u64>) -> bool {
    let slept = Cell::new(false);
    let work = poll_fn(|cx: &mut Context<'_>| {
        core.parking.prepare(cx.waker());
        core.parked.set(true);
        if core.is_quiet() && core.engine.borrow_mut().may_sleep() && core.parking.is_parked() {
            slept.set(true);
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    });
    // The first poll announces the sleep; from the second on the poller was woken.
    let mut announced = false;
    let mut work = pin!(work);
    let woken = poll_fn(|cx| {
        if std::mem::replace(&mut announced, true) {
            return Poll::Ready(());
        }
        work.as_mut().poll(cx)
    });
    match next_ns {
        None => woken.await,
        Some(ns) => {
            let timer = pin!(glommio::timer::sleep(Duration::from_nanos(ns - WAKE_EARLY_NS)));
            match select(pin!(woken), timer).await {
                Either::Left(_) | Either::Right(_) => {}
            }
        }
    }
    core.parked.set(false);
    core.parking.cancel();
    slept.get()
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

impl<D: Device> Core<D> {
    /// One turn: messages, deadlines, chains, clients. Yields whether anything moved.
    fn turn(&self, inbox: &mut Vec<(ShardId, Envelope)>) -> bool {
        let mut moved = self.receive(inbox);
        if self.timers.next().is_some() {
            moved |= self.fire_timers();
        }
        moved |= self.poll_engine();
        moved |= self.clients.run_ready() > 0;
        moved
    }

    /// Whether there is nothing to do but to wait, for chains or pauses.
    fn is_quiet(&self) -> bool {
        !self.clients.has_ready() && !self.mesh.borrow().has_work()
    }

    fn in_flight(&self) -> usize {
        self.engine.borrow().in_flight()
    }

    fn receive(&self, inbox: &mut Vec<(ShardId, Envelope)>) -> bool {
        {
            let mut mesh = self.mesh.borrow_mut();
            mesh.flush();
            mesh.receive(MESSAGES_PER_TURN, inbox);
        }
        let moved = !inbox.is_empty();
        for (from, envelope) in inbox.drain(..) {
            self.ports.deliver(from, envelope);
        }
        moved
    }

    fn fire_timers(&self) -> bool {
        let now = self.clock.now();
        let mut moved = false;
        while let Some(waiter) = self.timers.pop_due(now) {
            self.wake(waiter);
            moved = true;
        }
        moved
    }

    fn poll_engine(&self) -> bool {
        // Wakers of other executors' tasks may run code that submits: they are called when the engine is free again.
        let mut tasks: SmallVec<[Waiter; 16]> = SmallVec::new();
        let completed = self.engine.borrow_mut().poll(&mut |waiter| match waiter {
            Waiter::Client(key) => self.clients.make_ready(key),
            Waiter::Task(_) => tasks.push(waiter),
        });
        for waiter in tasks {
            self.wake(waiter);
        }
        completed > 0
    }
}
