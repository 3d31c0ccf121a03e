// Package follow polls files. A [Poller] polls while it has users. It polls a [File],
// or a [Tree], which is a file or the files of a directory. A file is read again only
// after a change. After an error its last valid content stays available.
package follow
