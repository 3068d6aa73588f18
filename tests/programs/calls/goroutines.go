// Eight goroutines sort, wait for each other, and print how often each compared. All wait at the
// same places of the runtime.
package main

import (
	"runtime"
	"sort"
)

var compared [8]int
var tokens = make(chan int)

func numbers(seed int) []int {
	found := make([]int, 60)
	for i := range found {
		seed = (seed*1103515245 + 12345) & 0x7fffffff
		found[i] = seed % 1000
	}
	return found
}

func count(k int) {
	compared[k]++
	if compared[k]%16 == k {
		runtime.Gosched()
	}
}

//go:noinline
func less0(a, b int) bool { count(0); return a < b }

//go:noinline
func less1(a, b int) bool { count(1); return a < b }

//go:noinline
func less2(a, b int) bool { count(2); return a < b }

//go:noinline
func less3(a, b int) bool { count(3); return a < b }

//go:noinline
func less4(a, b int) bool { count(4); return a < b }

//go:noinline
func less5(a, b int) bool { count(5); return a < b }

//go:noinline
func less6(a, b int) bool { count(6); return a < b }

//go:noinline
func less7(a, b int) bool { count(7); return a < b }

//go:noinline
func order(v []int, less func(int, int) bool) {
	sort.Slice(v, func(i, j int) bool { return less(v[i], v[j]) })
}

func finish() { tokens <- 1 }

func sorter0() { order(numbers(1), less0); finish() }
func sorter1() { order(numbers(2), less1); finish() }
func sorter2() { order(numbers(3), less2); finish() }
func sorter3() { order(numbers(4), less3); finish() }
func sorter4() { order(numbers(5), less4); finish() }
func sorter5() { order(numbers(6), less5); finish() }
func sorter6() { order(numbers(7), less6); finish() }
func sorter7() { order(numbers(8), less7); finish() }

func main() {
	sorters := []func(){
		sorter0, sorter1, sorter2, sorter3, sorter4, sorter5, sorter6, sorter7,
	}
	for _, sorter := range sorters {
		go sorter()
	}
	for range sorters {
		<-tokens
	}
	for _, each := range compared {
		println(each)
	}
}
