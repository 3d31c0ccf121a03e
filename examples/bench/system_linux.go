package main

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// split returns the CPU for the proxy and the CPUs for all other processes. On a machine
// with one CPU, both are the same.
func split() (proxy, others []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, nil, err
	}
	var all []int
	for i := 0; len(all) < set.Count(); i++ {
		if set.IsSet(i) {
			all = append(all, i)
		}
	}
	return all[:1], all[min(1, len(all)-1):], nil
}

// run starts cmd as a process on the given CPUs, and sends the error of the start, or nil,
// to started. It then waits until the process has ended. It locks its operating system
// thread until then, because the kernel kills the process when the thread ends. It does not
// unlock the thread, because other code must not run on the restricted CPUs.
func run(cmd *exec.Cmd, cpus []int, started chan<- error) {
	runtime.LockOSThread()
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	err := unix.SchedSetaffinity(0, &set)
	if err == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err = cmd.Start()
	}
	started <- err
	if err == nil {
		_ = cmd.Wait() // the command is killed when its context ends
	}
}

// cpuTime returns the CPU time that the process pid has used. It computes the clock ID as
// in clock_getcpuclockid(3).
func cpuTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|2), &t)
	return time.Duration(t.Nano()), err
}

// processor returns the model name of the CPU, or "" if it is unknown.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	_, after, _ := bytes.Cut(text, []byte("model name\t: "))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	return string(line)
}

// pollable returns the file f with reads that wait in the poller of the runtime. A blocking read
// of an idle file keeps the only P of a program for 10 to 20 ms, which delays its other requests.
func pollable(f *os.File) *os.File {
	fd := int(f.Fd())
	if unix.SetNonblock(fd, true) != nil {
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// alarm is a timer that is exact for waits of less than a millisecond. The timers of an
// idle Go program are less exact.
type alarm struct {
	fd   int
	file *os.File
}

func newAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	return alarm{fd, os.NewFile(uintptr(fd), "timerfd")}, err
}

func (a alarm) sleep(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	if err := unix.TimerfdSettime(a.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil); err != nil {
		return err
	}
	_, err := a.file.Read(make([]byte, 8))
	return err
}

func (a alarm) close() { a.file.Close() }
