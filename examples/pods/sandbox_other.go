//go:build !linux

package main

import (
	"context"
	"os/exec"
)

// There are no namespaces elsewhere.

func sandboxed(context.Context, ...string) error { return errCannot }

func furnish(string, string) error { return errCannot }

func apart(*exec.Cmd) {}
