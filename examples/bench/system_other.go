//go:build !linux

package main

import (
	"os"
	"os/exec"
	"time"
)

func split() (proxy, rest []int, err error) { return nil, nil, nil }

func run(cmd *exec.Cmd, _ []int, started chan<- error) {
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait() // killed when its context ends
	}
}

func cpuTime(int) (time.Duration, error) { return 0, nil }

func residentMemory(int) float64 { return 0 }

func pollable(f *os.File) *os.File { return f }

func processor() string { return "" }

type alarm struct{}

func newAlarm() (alarm, error) { return alarm{}, nil }

func (alarm) sleep(d time.Duration) error {
	time.Sleep(d)
	return nil
}

func (alarm) close() {}
