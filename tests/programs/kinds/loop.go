package main

import "os"

func main() {
	sums := make(chan int)
	go func() {
		sum := 0
		for i := 0; i < 100; i++ {
			sum += i * i
		}
		sums <- sum
	}()
	println("waiting")
	if <-sums == 328350 {
		os.Stdout.WriteString("right\n")
	}
	os.Exit(3)
}
