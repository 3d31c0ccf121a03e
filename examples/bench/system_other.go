//go:build !linux

package main

import (
	"os"
	"os/exec"
	"time"
)

// split returns no CPUs, because processes are not bound to CPUs here.
func split() (proxy, rest []int, err error) { return nil, nil, nil }

// run starts cmd on any CPU, sends the error of the start, or nil, to started, and waits for the end.
func run(cmd *exec.Cmd, _ []int, started chan<- error) {
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait() // killed when its context ends
	}
}

// cpuTime always returns 0, because the time is only measured on Linux.
func cpuTime(int) (time.Duration, error) { return 0, nil }

// residentMemory always returns 0, which means that it is unknown.
func residentMemory(int) float64 { return 0 }

// pollable returns f itself.
func pollable(f *os.File) *os.File { return f }

// processor always returns "", which means that the model is unknown.
func processor() string { return "" }

// alarm waits with the runtime's timers.
type alarm struct{}

// newAlarm returns an alarm.
func newAlarm() (alarm, error) { return alarm{}, nil }

// sleep waits for d.
func (alarm) sleep(d time.Duration) error {
	time.Sleep(d)
	return nil
}

// close does nothing.
func (alarm) close() {}
