//! Shows the report on a terminal.

use super::report::{self, Report};
use super::sample::{Sample, sample};
use crate::control::ControlArgs;
use crate::{said, ss};
use anyhow::Context;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// A signal ends it, and the terminal is restored, after at most this time.
const LOOK: Duration = Duration::from_millis(100);

const KEYS: &str = "q quit  p pause  ↑ ↓ PgUp PgDn Home scroll";

/// The state of the screen.
pub(super) struct State {
    pub(super) report: Report,
    /// The reason why the report is not current.
    pub(super) error: Option<String>,
    pub(super) paused: bool,
    /// Index of the first visible socket.
    pub(super) first: usize,
}

pub(super) fn show(control: &ControlArgs, interval: Duration, first: Sample) -> anyhow::Result<ExitCode> {
    let ended = ended()?;
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let result = follow(&mut terminal, control, interval, first, &ended);
    let restored = ratatui::try_restore().context("cannot use the terminal");
    result.and(restored).map(|()| ExitCode::SUCCESS)
}

/// Becomes true on a signal that ends programs. In raw mode Ctrl-C is a key and not a signal.
fn ended() -> anyhow::Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let signals = {
        let _entered = runtime.enter();
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?]
    };
    let set = ended.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let [mut term, mut int, mut hup] = signals;
        runtime.block_on(async {
            tokio::select! { _ = term.recv() => (), _ = int.recv() => (), _ = hup.recv() => () }
        });
        set.store(true, Ordering::Relaxed);
    })?;
    Ok(ended)
}

fn follow(
    terminal: &mut ratatui::DefaultTerminal,
    control: &ControlArgs,
    interval: Duration,
    first: Sample,
    ended: &AtomicBool,
) -> anyhow::Result<()> {
    let mut state = State { report: Report::between(&first, &first), error: None, paused: false, first: 0 };
    let mut before = first;
    let mut next = Instant::now() + interval.min(Duration::from_millis(250));
    while !ended.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw(frame, &mut state)).context("cannot use the terminal")?;
        // Until the next report, a key, a new size, or a signal.
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if event::poll(left.min(LOOK)).context("cannot use the terminal")? {
                if press(&mut state, &event::read().context("cannot use the terminal")?) {
                    return Ok(());
                }
                break;
            }
            if left.is_zero() {
                next = Instant::now() + interval;
                if !state.paused {
                    renew(&mut state, &mut before, control);
                }
                break;
            }
            if ended.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A daemon that does not answer may be restarting. The last report stays, and it is asked again.
fn renew(state: &mut State, before: &mut Sample, control: &ControlArgs) {
    match sample(control) {
        Ok(now) => {
            state.report = Report::between(before, &now);
            state.error = None;
            *before = now;
        }
        Err(error) => state.error = Some(said(&error)),
    }
}

/// `true`: enough.
fn press(state: &mut State, event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    if key.kind == KeyEventKind::Release {
        return false;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('p' | ' ') => state.paused = !state.paused,
        KeyCode::Down | KeyCode::Char('j') => state.first += 1,
        KeyCode::Up | KeyCode::Char('k') => state.first = state.first.saturating_sub(1),
        KeyCode::PageDown => state.first += 10,
        KeyCode::PageUp => state.first = state.first.saturating_sub(10),
        KeyCode::Home => state.first = 0,
        _ => {}
    }
    false
}

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let State { report, error, paused, first } = state;
    let side = report.drops.len().max(report.reasons.len()).min(8);
    // Empty tables are omitted. The sockets get the remaining lines.
    let height = |lines: usize| if lines == 0 { 0 } else { lines as u16 + 2 };
    let rows =
        [1, 5, height(report.cores.len().min(16)), height(report.times.len()), height(side)].map(Constraint::Length);
    let [head, traffic, cores, times, causes, sockets] =
        Layout::vertical(rows.into_iter().chain([Constraint::Min(3)])).areas(frame.area());
    let mut line = vec![Span::raw(report.head.clone())];
    match error {
        Some(error) => line.push(Span::styled(format!("  {error}"), Style::new().bold().red())),
        None if *paused => line.push(Span::styled("  paused", Style::new().bold())),
        None => line.push(Span::styled(format!("  {KEYS}"), Style::new().dim())),
    }
    frame.render_widget(Paragraph::new(Line::from(line)), head);
    table(frame, traffic, report::TRAFFIC, report.traffic.iter().map(report::traffic_line));
    table(frame, cores, report::CORES, report.cores.iter().map(report::core_line));
    table(frame, times, report::TIMES, report.times.iter().map(report::times_line));
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(causes);
    table(frame, left, report::REASONS, report.reasons.iter().map(report::reason_line));
    table(frame, right, report::DROPS, report.drops.iter().map(report::drop_line));
    // Scrolling ends at the last page.
    let room = usize::from(sockets.height.saturating_sub(1));
    *first = (*first).min(report.sockets.len().saturating_sub(room));
    let text = ss::table(&report.sockets, true);
    let mut lines = text.lines();
    let headings = lines.next().map(|line| Line::styled(line.to_owned(), heading()));
    let shown = lines.skip(*first).take(room).map(|line| Line::raw(line.to_owned()));
    frame.render_widget(Paragraph::new(headings.into_iter().chain(shown).collect::<Vec<_>>()), sockets);
}

fn heading() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

/// First column left-aligned, numbers right-aligned, with headings.
fn table<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    headings: [&str; N],
    lines: impl Iterator<Item = [String; N]>,
) {
    if area.height == 0 {
        return;
    }
    let lines: Vec<[String; N]> = lines.collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].len());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let aligned = |line: &[String; N]| {
        let cells = line.iter().zip(widths).enumerate();
        Row::new(cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        }))
    };
    let head = aligned(&headings.map(str::to_owned)).style(heading());
    let widths = widths.map(|width| Constraint::Length(width as u16));
    frame.render_widget(Table::new(lines.iter().map(aligned), widths).header(head).column_spacing(2), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;

    fn state() -> State {
        let (before, now) = report::tests::samples();
        State { report: Report::between(&before, &now), error: None, paused: false, first: 0 }
    }

    fn drawn(state: &mut State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content().chunks(usize::from(width));
        lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }

    #[test]
    fn screen_has_all_parts() {
        let screen = drawn(&mut state(), 120, 30);
        for part in [
            "daemon 5 (eth0, 2 cores)",
            "memory",
            "wire",
            "kernel",
            "not-served",
            "accept wait",
            "bad_checksum",
            "nginx",
        ] {
            assert!(screen.contains(part), "{part}:\n{screen}");
        }
        // Any size can be drawn.
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 80)] {
            let _drawn = drawn(&mut state(), width, height);
        }
    }

    #[test]
    fn keys_scroll_and_pause() {
        let mut state = state();
        let key = |code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
        assert!(!press(&mut state, &key(KeyCode::PageDown)));
        assert_eq!(state.first, 10);
        let _drawn = drawn(&mut state, 120, 40);
        assert_eq!(state.first, 0, "all sockets have room");
        assert!(!press(&mut state, &key(KeyCode::Char('p'))) && state.paused);
        assert!(drawn(&mut state, 120, 30).contains("paused"));
        assert!(press(&mut state, &key(KeyCode::Char('q'))));
        assert!(press(&mut state, &Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL))));
    }
}
