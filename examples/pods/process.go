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

// The user IDs of the programs in the pods.
const (
	root  = 0
	proxy = 2102  // user of the proxies; its connections are not redirected
	app   = 65534 // user of the applications, without privileges
)

// process is a program that was started in a pod.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string        // path of the file with its output
	done chan struct{} // closed when the program ends
	err  error         // result of the program; set before done is closed
}

// command returns a command that runs a program in the pod p, as the user uid and with the
// environment env. If p is the zero pod, the program runs outside the pods.
func command(ctx context.Context, p pod, uid int, env []string, argv ...string) *exec.Cmd {
	if uid != root {
		// ip netns exec requires root, so setpriv comes after it in the command line.
		id := strconv.Itoa(uid)
		argv = append([]string{"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups", "--"}, argv...)
	}
	if p.name != "" {
		argv = append([]string{"ip", "netns", "exec", p.name}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the programs are constants
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "POD=" + p.name}, env...)
	// The working directory may be one that the user cannot read.
	cmd.Dir = "/"
	return cmd
}

// output runs cmd and returns its standard output. If cmd fails, the error text contains its
// standard error and its standard output.
func output(cmd *exec.Cmd) (string, error) {
	var out, complaint bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(complaint.String()+out.String()))
	}
	return out.String(), nil
}

// launch starts cmd. Its output is written to the file name.log in dir.
func launch(dir, name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, cmd: cmd, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	// The file may exist already: a program with the same name appends to it.
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	// The process has its own copy.
	defer log.Close()
	cmd.Stdout = log
	cmd.Stderr = log
	setProcessGroup(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// ended returns an error if the process has ended, and nil while it runs.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %v\n%s", p.name, p.err, p.tail()) //nolint:errorlint // it may be nil
	default:
		return nil
	}
}

// stop sends a signal to the process and waits until it has ended. It returns an error if
// the exit status is not 0.
func (p *process) stop(ctx context.Context, sig os.Signal) error {
	// If the process has ended, its result decides.
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

// tail returns the last lines that the process printed.
func (p *process) tail() string {
	output, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	// The last 15 lines are enough to see why it failed.
	return "    " + strings.Join(lines[max(0, len(lines)-15):], "\n    ")
}
