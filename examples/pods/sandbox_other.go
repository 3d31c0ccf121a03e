//go:build !linux

package main

import (
	"context"
	"os/exec"
)

// Namespaces exist only on Linux.

func sandboxed(context.Context, ...string) error { return errSkip }

func mountSandbox(string, string) error { return errSkip }

func apart(*exec.Cmd) {}
