// Package follow polls files. A [Poller] polls a [File] as long as it is used. The file is read
// again only after a change. After an error, the last valid content stays available.
package follow
