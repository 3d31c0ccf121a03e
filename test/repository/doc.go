// Package repository checks the repository as a whole: the imports between its packages, the
// programs in the README, releases, and modules that import this one.
package repository
