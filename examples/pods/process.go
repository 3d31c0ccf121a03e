package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// The users of the pods.
const (
	root  = 0
	proxy = 2102  // which examples/init does not redirect
	app   = 65534 // unprivileged
)

// process is a running program in a pod.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string // file of the output
	done chan struct{}
	err  error // set when done is closed
}

// command returns a command that runs a program in a pod as a user with the environment
// env. If the pod has no name, the program runs outside of the pods.
func command(ctx context.Context, p pod, uid int, env []string, argv ...string) *exec.Cmd {
	if uid != root {
		id := strconv.Itoa(uid)
		argv = append([]string{"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups", "--"}, argv...)
	}
	if p.name != "" {
		argv = append([]string{"ip", "netns", "exec", p.name}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the programs are constants
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "POD=" + p.name}, env...)
	cmd.Dir = "/"
	return cmd
}

// output runs a program and returns its output. The error contains the error output.
func output(cmd *exec.Cmd) (string, error) {
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(complaint.String()+out.String()))
	}
	return out.String(), nil
}

// launch starts a program. Its output is in a file of its name in dir.
func launch(dir, name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, cmd: cmd, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	apart(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// ended returns an error if the process has ended.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %v\n%s", p.name, p.err, p.tail()) //nolint:errorlint // it may be nil
	default:
		return nil
	}
}

// stop signals a process and waits until it has ended.
func (p *process) stop(ctx context.Context, sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("%s has not ended: %w\n%s", p.name, context.Cause(ctx), p.tail())
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w\n%s", p.name, p.err, p.tail())
	}
	return nil
}

// tail returns the last output of a process.
func (p *process) tail() string {
	output, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return "    " + strings.Join(lines[max(0, len(lines)-15):], "\n    ")
}
