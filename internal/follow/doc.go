// Package follow looks at files as they change. A [Poller] looks while somebody
// wants to know; what it looks at is a [File], or a [Tree], which is a file or the
// files of a directory. A file is read again only if it may have changed, and its
// last good content kept when it goes bad.
package follow
