//go:build !linux

package resident

// UnmapFiles does nothing, because only Linux shows which pages of files are unchanged.
func UnmapFiles() {}
