class Loop {
    public static void main(String[] words) {
        long sum = 0;
        for (int i = 0; i < 100; i++) sum += i * i;
        System.out.println(sum);
        System.exit(3);
    }
}
