package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// roleVariable is the environment variable that contains the role of a child process of
// this program. The parent process does not have it.
const roleVariable = "GOTOWER_BENCH_ROLE"

// role is the main function of a child process of this program. args are the arguments of the
// process. When the process accepts work, the function calls ready. The arguments of ready are
// the address of the process, and the [command] that the process runs for its parent.
type role func(ctx context.Context, args []string, ready func(addr string, serve command)) error

// command is a function of a child process that its parent can call. The parent writes line to
// the child. The child calls the function with line, and writes the result to the parent as
// JSON.
type command func(line string) (result any, err error)

// playRole runs the role r. It first writes the address of the role to the output out. For
// each line of the input in, it calls the command of the role, and writes the result as one
// line of JSON. It returns at the end of the input, when r returns, or when the command
// fails.
func playRole(r role, args []string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 2)
	ready := func(addr string, serve command) {
		fmt.Fprintln(out, addr)
		go func() {
			for lines := bufio.NewScanner(in); lines.Scan(); {
				result, err := serve(lines.Text())
				if err == nil {
					err = json.NewEncoder(out).Encode(result)
				}
				if err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	go func() { ended <- r(ctx, args, ready) }()
	return <-ended
}

// process is a process that this program has started. It is killed when the context of its
// command ends.
type process struct {
	role     string // name of the role; "" for a program of another project
	addr     string
	graceful bool // stop first sends SIGTERM, because the process must end its children
	cmd      *exec.Cmd
	in       io.Writer
	out      *bufio.Reader
	errors   bytes.Buffer // standard error; complete when ended is closed
	ended    chan struct{}
}

// start starts cmd as a process that may use only the given CPUs.
func start(cmd *exec.Cmd, cpus []int) (*process, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, in: in, out: bufio.NewReader(out), ended: make(chan struct{})}
	cmd.Stderr = &p.errors
	started := make(chan error, 1)
	go func() {
		defer close(p.ended)
		run(cmd, cpus, started)
	}()
	return p, <-started
}

// startRole starts this program again as a process with the given role and arguments. It
// waits until the role is ready.
func startRole(ctx context.Context, cpus []int, role string, args ...string) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	p, err := start(cmd, cpus)
	if err != nil {
		return nil, err
	}
	p.role = role
	p.addr, err = p.line()
	return p, err
}

// line reads one line from the output of the process. If the process has ended, the error
// contains its standard error.
func (p *process) line() (string, error) {
	text, err := p.out.ReadString('\n')
	if err != nil {
		p.stop()
		return "", fmt.Errorf("%s ended with %v: %s", p.role, p.cmd.ProcessState, strings.TrimSpace(p.errors.String()))
	}
	return strings.TrimSpace(text), nil
}

// ask sends one line to the process: the words, separated by spaces. The process calls its
// [command] with this line. ask decodes the response from JSON into result.
func (p *process) ask(result any, words ...any) error {
	fmt.Fprintln(p.in, words...) // line reports an error of it
	text, err := p.line()
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), result)
}

// usage is the CPU time and the number of allocations of a process since its start.
type usage struct {
	Allocations uint64 // number of allocations; 0 for programs of other projects
	cpu         time.Duration
}

func (p *process) usage() (u usage, err error) {
	if p.role != "" {
		if err := p.ask(&u); err != nil {
			return u, err
		}
	}
	u.cpu, err = cpuTime(p.cmd.Process.Pid)
	return u, err
}

// stop kills the process and waits until it has ended. If p.graceful is true, stop first
// sends SIGTERM and waits up to 10 s.
func (p *process) stop() {
	if p.graceful {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
}
