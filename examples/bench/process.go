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

// roleVariable is the environment variable that contains the name of a child process's [role]. It
// must not be set for the parent process, which would then play that role instead of comparing.
const roleVariable = "GOTOWER_BENCH_ROLE"

// role is the main function of a child process with the arguments args. When the child is ready, the
// role calls ready once. addr is the address on which it serves, and serve runs the parent's commands.
type role func(ctx context.Context, args []string, ready func(addr string, serve command)) error

// command is a function in a child process that its parent can call, by writing line to the child's
// standard input. The parent reads the result from the standard output, as JSON.
type command func(line string) (result any, err error)

// playRole runs r. It writes the role's address to output first. For each line of input, it calls
// the role's command, and writes the result as one line of JSON. It returns when the input or r
// ends, or when the command fails.
func playRole(r role, args []string, input io.Reader, output io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The input and the role each send once, so none blocks.
	ended := make(chan error, 2)
	// ready tells the parent the address, and serves its commands, one a line, until the input ends.
	ready := func(addr string, serve command) {
		// The parent reads the address from the first line, which also tells that the role is ready.
		fmt.Fprintln(output, addr)
		go func() {
			for lines := bufio.NewScanner(input); lines.Scan(); {
				result, err := serve(lines.Text())
				if err == nil {
					err = json.NewEncoder(output).Encode(result)
				}
				if err != nil {
					ended <- err
					return
				}
			}
			// The parent has closed the input.
			ended <- nil
		}()
	}
	go func() { ended <- r(ctx, args, ready) }()
	return <-ended
}

// process is a running program. It is killed when its command's context ends.
type process struct {
	role     string // the role of a child process of this program; "" for another project's program
	addr     string
	graceful bool // stop should send SIGTERM first, so that the process can end its children
	// The parent writes commands to input and reads the results from output.
	cmd    *exec.Cmd
	input  io.Writer
	output *bufio.Reader
	errors bytes.Buffer // standard error; may be read when ended is closed
	// ended is closed when the process has ended.
	ended chan struct{}
}

// start starts cmd on the given CPUs.
func start(cmd *exec.Cmd, cpus []int) (*process, error) {
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, input: input, output: bufio.NewReader(output), ended: make(chan struct{})}
	cmd.Stderr = &p.errors
	// run sends to started once the process has started or could not start.
	started := make(chan error, 1)
	go func() {
		defer close(p.ended)
		run(cmd, cpus, started)
	}()
	return p, <-started
}

// startRole starts this program again with the given role and arguments, and waits until it is
// ready.
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

// line reads one line from the process's output. If the process has ended, the error contains its
// standard error.
func (p *process) line() (string, error) {
	text, err := p.output.ReadString('\n')
	if err != nil {
		// stop waits for the end, so that the standard error is complete.
		p.stop()
		return "", fmt.Errorf("%s ended with %v: %s", p.role, p.cmd.ProcessState, strings.TrimSpace(p.errors.String()))
	}
	return strings.TrimSpace(text), nil
}

// ask calls the process's [command] with words, separated by spaces, and decodes the response into
// result.
func (p *process) ask(result any, words ...any) error {
	fmt.Fprintln(p.input, words...) // line would report the error
	text, err := p.line()
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), result)
}

// usage is a process's CPU time and number of allocations since its start, and its memory.
type usage struct {
	Allocations uint64 // 0 for other projects' programs
	cpu         time.Duration
	resident    float64 // resident memory in MiB
}

// usage returns what the process has used so far. The kernel knows the CPU time and the memory of each
// process, but only a process that plays a role can be asked for its allocations.
func (p *process) usage() (u usage, err error) {
	if p.role != "" {
		if err := p.ask(&u); err != nil {
			return u, err
		}
	}
	u.resident = residentMemory(p.cmd.Process.Pid)
	u.cpu, err = cpuTime(p.cmd.Process.Pid)
	return u, err
}

// stop kills the process and waits for its end. If p.graceful is set, it sends SIGTERM first, and
// waits for up to 10 s.
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
