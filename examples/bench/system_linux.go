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

// split returns the CPU of the proxy and the CPUs of all other processes. On a machine
// with one CPU, they share it.
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

// run starts a process on some CPUs, reports the start to started, and waits for its
// end. It locks its thread, because the process is killed when the thread ends. The
// thread is not used again, because its CPUs are restricted.
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
		_ = cmd.Wait() // it is killed at its end
	}
}

// cpuTime returns the CPU time that a process has used. The clock number is computed
// from the pid as in clock_getcpuclockid(3).
func cpuTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|2), &t)
	return time.Duration(t.Nano()), err
}

// processor returns the name of the CPU.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	_, after, _ := bytes.Cut(text, []byte("model name\t: "))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	return string(line)
}

// alarm sleeps for less than a millisecond, for which the timers of an idle Go program
// are too inexact.
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
