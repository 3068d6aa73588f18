//! `ProcessCalls`: the calls of the threads of a process, from one `StreamDecoder` for each thread.

use std::sync::{Mutex, MutexGuard};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_listing::{
    CallBatch, CallLog, CallSink, FinishedCalls, ProcessCalls as Calls, SwitchPermit, TaskSchedule,
    Wait, NONE,
};

use crate::arguments::{dict_of, AllItems, BoundedItems};
use crate::columns::{column_of_rows, Column};
use crate::errors::lock_exclusively;
use crate::results::{calls_dict, module_paths, root_number};
use crate::stream_decoder::{CallProgress, StreamDecoder};
use crate::symbols::Names;

/// Time (TSC) by which the clocks of two threads may differ: under QEMU each thread has its own. A thread waits so long
/// for the stack that it resumes.
const MAX_CLOCK_DIFFERENCE: u64 = 1 << 24;

/// Calls, and how far each thread has come.
struct Threads<L> {
    /// None after an error.
    calls: Option<Box<Calls<L>>>,
    progress: Vec<CallProgress>,
}

impl<L> Threads<L> {
    /// The next thread to follow: one that does not wait, or the one that waits for what is earliest.
    fn next_thread(&self) -> Option<usize> {
        let threads = self.progress.iter().enumerate();
        let unfinished = threads.filter_map(|(thread, progress)| match *progress {
            CallProgress::Proceeds => Some((0, thread)),
            CallProgress::Waits(Wait::ForTime, time) => Some((time, thread)),
            CallProgress::Waits(Wait::ForStack, time) => {
                Some((time.saturating_add(MAX_CLOCK_DIFFERENCE), thread))
            }
            CallProgress::Finished => None,
        });
        unfinished.min().map(|(_, thread)| thread)
    }

    fn waits_for_stack(&self, thread: usize) -> bool {
        let progress = self.progress.get(thread);
        matches!(progress, Some(CallProgress::Waits(Wait::ForStack, _)))
    }
}

/// The address of `__switch_to`; of each decoder the starts (TSC) and the tasks of its scheduling intervals; the
/// process of each task, as an index in the last.
type Tasks = (
    u64,
    Vec<(PyBuffer<u64>, PyBuffer<u32>)>,
    PyBuffer<u32>,
    AllItems<Py<Names>>,
);

/// The tasks of all processors.
struct ProcessorTasks {
    switch_address: u64,
    schedules: Vec<(Vec<u64>, Vec<u32>)>,
    process_of_task: Vec<u32>,
    names: Vec<Py<Names>>,
}

#[pyclass(frozen, module = "rtit._core")]
pub struct ProcessCalls {
    decoders: Vec<Py<StreamDecoder>>,
    tasks: Option<ProcessorTasks>,
    names: Py<Names>,
    is_whole: bool,
    max_pairs: usize,
    /// For `rows`.
    threads: Mutex<Option<Threads<CallBatch>>>,
}

impl ProcessCalls {
    fn begin<L: CallLog>(&self, max_runs: usize, log: L) -> Threads<L> {
        let names = self.names.get().new_name_cursor();
        let has_several_threads = self.decoders.len() > 1;
        let mut calls = Calls::new(
            names,
            self.is_whole,
            self.max_pairs,
            max_runs,
            has_several_threads,
            log,
        );
        if let Some(tasks) = &self.tasks {
            let names = tasks.names.iter();
            let names = names.map(|each| each.get().new_name_cursor()).collect();
            calls.set_task_names(names, tasks.process_of_task.clone());
        }
        Threads {
            calls: Some(calls.into()),
            progress: vec![CallProgress::Proceeds; self.decoders.len()],
        }
    }

    /// Decodes until all threads have finished, or the log is full.
    fn follow<L: CallLog + Send + 'static>(
        &self,
        py: Python<'_>,
        threads: &mut Threads<L>,
    ) -> PyResult<()> {
        while let Some(thread) = threads.next_thread() {
            let permit = match threads.waits_for_stack(thread) {
                true => SwitchPermit::AnyStack,
                false => SwitchPermit::KnownStack,
            };
            let mut progress = self.follow_thread(py, threads, thread, permit)?;
            for other in 0..self.decoders.len() {
                if progress != CallProgress::Proceeds && threads.waits_for_stack(other) {
                    progress = self.follow_thread(py, threads, other, SwitchPermit::KnownStack)?;
                }
            }
            if progress == CallProgress::Proceeds {
                break;
            }
        }
        Ok(())
    }

    fn follow_thread<L: CallLog + Send + 'static>(
        &self,
        py: Python<'_>,
        threads: &mut Threads<L>,
        thread: usize,
        permit: SwitchPermit,
    ) -> PyResult<CallProgress> {
        let decoder = self.decoders.get(thread).ok_or_else(no_calls_error)?;
        let sink = || {
            let names = self.names.get().new_name_cursor();
            match self.schedule_of_processor(thread) {
                Some(schedule) => CallSink::for_processor(schedule, names),
                None => CallSink::new(thread as u32, names),
            }
        };
        let progress = decoder
            .get()
            .follow_calls(py, &mut threads.calls, permit, sink)?;
        if let Some(place) = threads.progress.get_mut(thread) {
            *place = progress;
        }
        Ok(progress)
    }

    fn schedule_of_processor(&self, processor: usize) -> Option<TaskSchedule> {
        let tasks = self.tasks.as_ref()?;
        let (starts, of_intervals) = tasks.schedules.get(processor)?;
        Some(TaskSchedule {
            switch_address: tasks.switch_address,
            starts: starts.clone(),
            tasks: of_intervals.clone(),
            unknown_task: tasks.process_of_task.len() as u32,
            begun: 0,
        })
    }

    fn finish(&self, py: Python<'_>, max_runs: usize) -> PyResult<FinishedCalls> {
        let mut threads = self.begin(max_runs, ());
        self.follow(py, &mut threads)?;
        let mut calls = threads.calls.ok_or_else(no_calls_error)?;
        Ok(py.detach(|| calls.finish()))
    }

    fn lock_threads(&self) -> PyResult<MutexGuard<'_, Option<Threads<CallBatch>>>> {
        lock_exclusively(&self.threads, "ProcessCalls")
    }
}

fn no_calls_error() -> PyErr {
    PyValueError::new_err("following the calls has failed before")
}

#[pymethods]
impl ProcessCalls {
    #[new]
    #[pyo3(signature = (decoders, names, is_whole, max_pairs, tasks = None))]
    fn new(
        py: Python<'_>,
        decoders: BoundedItems<Py<StreamDecoder>>,
        names: Py<Names>,
        is_whole: bool,
        max_pairs: usize,
        tasks: Option<Tasks>,
    ) -> PyResult<ProcessCalls> {
        let tasks = tasks.map(|(switch_address, schedules, processes, names)| {
            let schedules = schedules
                .iter()
                .map(|(starts, tasks)| Ok((starts.to_vec(py)?, tasks.to_vec(py)?)));
            PyResult::Ok(ProcessorTasks {
                switch_address,
                schedules: schedules.collect::<PyResult<_>>()?,
                process_of_task: processes.to_vec(py)?,
                names: names.0,
            })
        });
        Ok(ProcessCalls {
            decoders: decoders.0,
            tasks: tasks.transpose()?,
            names,
            is_whole,
            max_pairs,
            threads: Mutex::new(None),
        })
    }

    fn totals<'py>(&self, py: Python<'py>, max_runs: usize) -> PyResult<Bound<'py, PyDict>> {
        let found = self.finish(py, max_runs)?;
        let sums = py.detach(|| found.sum_by_edge());
        let (calls, contexts, runs) = (&sums.calls, &sums.contexts, &sums.runs);
        let deep = sums.beyond_contexts + found.counts.too_deep + found.tree.calls_without_node;
        let wide = |index: u32| match index {
            NONE => u64::MAX,
            index => index.into(),
        };
        dict_of!(py,
            from_region: column_of_rows(calls, |row| wide(row.edge.from.region)),
            from_offset: column_of_rows(calls, |row| row.edge.from.offset),
            to_region: column_of_rows(calls, |row| wide(row.edge.to.region)),
            to_offset: column_of_rows(calls, |row| row.edge.to.offset),
            calls: column_of_rows(calls, |row| row.calls),
            inclusive: column_of_rows(calls, |row| row.inclusive),
            parent: column_of_rows(contexts, |row| wide(row.parent)),
            call: column_of_rows(contexts, |row| wide(row.call)),
            own: column_of_rows(contexts, |row| row.own),
            run_context: column_of_rows(runs, |row| row.context),
            run_region: column_of_rows(runs, |row| row.start.region),
            run_offset: column_of_rows(runs, |row| row.start.offset),
            run_instructions: column_of_rows(runs, |row| row.instructions),
            run_count: column_of_rows(runs, |row| row.count),
            deep_calls: Column::from(vec![deep]),
            calls_beyond_pairs: Column::from(vec![sums.beyond_edges]),
        )
    }

    fn tree<'py>(&self, py: Python<'py>, max_runs: usize) -> PyResult<Bound<'py, PyDict>> {
        let found = self.finish(py, max_runs)?;
        let (totals, recursive) = py.detach(|| (found.totals(), found.recursive_nodes()));
        let (nodes, runs) = (found.tree.nodes(), &found.runs);
        // Runs are added to the functions at their addresses, for which nodes need theirs.
        let located = if max_runs > 0 { nodes } else { &[] };
        let edge = |call: u32| found.edges.get(call as usize);
        let counts = found.counts;
        dict_of!(py,
            parent: column_of_rows(nodes, |row| row.parent),
            function: column_of_rows(nodes, |row| found.functions.function_of_edge(edge(row.call)).name),
            module: column_of_rows(nodes, |row| found.functions.function_of_edge(edge(row.call)).module),
            call_site: column_of_rows(nodes, |row| edge(row.call).map_or(0, |edge| edge.call_site)),
            entry: column_of_rows(nodes, |row| edge(row.call).map_or(0, |edge| edge.entry)),
            kind: column_of_rows(nodes, |row| row.kind as u8),
            root: column_of_rows(nodes, |row| root_number(edge(row.call))),
            calls: column_of_rows(nodes, |row| row.calls),
            own: column_of_rows(nodes, |row| row.own),
            total: Column::from(totals),
            recursive: Column::from(recursive),
            thread: Column::from(found.threads()),
            functions: found.functions.names.as_slice(),
            modules: module_paths(&found.functions),
            site_region: column_of_rows(located, |row| edge(row.call).map_or(NONE, |edge| edge.edge.from.region)),
            site_offset: column_of_rows(located, |row| edge(row.call).map_or(0, |edge| edge.edge.from.offset)),
            entry_region: column_of_rows(located, |row| edge(row.call).map_or(NONE, |edge| edge.edge.to.region)),
            entry_offset: column_of_rows(located, |row| edge(row.call).map_or(0, |edge| edge.edge.to.offset)),
            run_node: column_of_rows(runs, |row| row.context),
            run_region: column_of_rows(runs, |row| row.start.region),
            run_offset: column_of_rows(runs, |row| row.start.offset),
            run_instructions: column_of_rows(runs, |row| row.instructions),
            run_count: column_of_rows(runs, |row| row.count),
            returned: counts.returned,
            unwound: counts.unwound,
            switched: counts.switched,
            unknown: counts.unknown,
            choices: counts.choices,
            corrected: counts.corrected,
            calls_without_node: counts.too_deep + found.tree.calls_without_node,
        )
    }

    fn rows<'py>(&self, py: Python<'py>, max_rows: usize) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut state = self.lock_threads()?;
        let log = CallBatch {
            calls: Vec::new(),
            max_calls: max_rows.max(1),
        };
        let threads = state.get_or_insert_with(|| self.begin(0, log));
        let was_finished = threads.next_thread().is_none();
        self.follow(py, threads)?;
        let is_finished = threads.next_thread().is_none();
        let calls = threads.calls.as_mut().ok_or_else(no_calls_error)?;
        if is_finished && !was_finished {
            py.detach(|| calls.end_calls());
        }
        let rows = std::mem::take(&mut calls.log_mut().calls);
        if rows.is_empty() && is_finished {
            return Ok(None);
        }
        let (edges, functions) = calls.named_edges();
        calls_dict(py, &rows, edges, functions).map(Some)
    }
}
