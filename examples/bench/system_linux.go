package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// split returns the CPU for the proxy and those for all other processes. They are the same on a
// machine with a single CPU.
func split() (proxy, rest []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, nil, err
	}
	// CPU numbers may have gaps, so the loop looks for as many as there are.
	var all []int
	for i := 0; len(all) < set.Count(); i++ {
		if set.IsSet(i) {
			all = append(all, i)
		}
	}
	// With a single CPU, both slices contain it.
	return all[:1], all[min(1, len(all)-1):], nil
}

// run starts cmd on the given CPUs, sends the error of the start, or nil, to started, and waits
// until the process has ended. It locks its operating system thread, because the kernel kills the process
// when the thread that started it ends. run never unlocks the thread: the thread ends with its goroutine, so
// that no other code runs on the restricted CPUs.
func run(cmd *exec.Cmd, cpus []int, started chan<- error) {
	runtime.LockOSThread()
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	err := unix.SchedSetaffinity(0, &set)
	// The affinity is that of the thread. The process inherits it.
	if err == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err = cmd.Start()
	}
	// The caller continues, and this goroutine waits for the end.
	started <- err
	if err == nil {
		_ = cmd.Wait() // killed when its context ends
	}
}

// cpuTime returns how much CPU time the process has used. The clock ID is computed as in
// clock_getcpuclockid(3).
func cpuTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|2), &t)
	return time.Duration(t.Nano()), err
}

// residentMemory returns the process's resident memory in MiB, or 0 if it is unknown.
func residentMemory(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, resident int // in pages
	_, _ = fmt.Sscan(string(text), &size, &resident)
	return float64(resident) * float64(os.Getpagesize()) / (1 << 20)
}

// processor returns the CPU's model name, or "" if it is unknown.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	// All processors are of the same model, so the first one counts.
	_, rest, _ := bytes.Cut(text, []byte("model name\t: "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return string(line)
}

// pollable returns f with reads that wait in the runtime's poller. A blocking read of an idle file
// keeps a program's only P for 10 to 20 ms, which delays its other requests.
func pollable(f *os.File) *os.File {
	fd := int(f.Fd())
	if unix.SetNonblock(fd, true) != nil {
		return f
	}
	// NewFile sees that f does not block and uses the poller.
	return os.NewFile(uintptr(fd), f.Name())
}

// alarm is a timer that is exact for waits of less than a millisecond, unlike the timers of an idle
// Go program.
type alarm struct {
	// fd is the timer's file descriptor. file is the same one, whose reads use the runtime's poller.
	fd   int
	file *os.File
}

// newAlarm returns an alarm, which must be closed.
func newAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	return alarm{fd, os.NewFile(uintptr(fd), "timerfd")}, err
}

// sleep waits for d.
func (a alarm) sleep(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	if err := unix.TimerfdSettime(a.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil); err != nil {
		return err
	}
	// The read returns when the timer has expired. It yields the number of expirations, which is 1 here.
	_, err := a.file.Read(make([]byte, 8))
	return err
}

// close releases the timer.
func (a alarm) close() { a.file.Close() }
