//go:build !linux

package sidecar

// unmapFiles does nothing, because only Linux shows which pages of files are unchanged.
func unmapFiles() {}
